"""FP8 delayed scaling: scales and amax history of a module's slots in one direction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from typing_extensions import override

from qrole.dtypes import DType, fp8_element
from qrole.quantizers.fp8 import Float8Quantizer
from qrole.recipes import DelayedScaling
from qrole.state.base import RecipeState, device_of, fp8_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qrole.quantizers.base import Quantizer
    from qrole.roles import QuantizerRole

__all__ = ["DelayedBuffers", "DelayedScalingRecipeState"]

_FLOAT32_MAX = torch.finfo(torch.float32).max


class DelayedBuffers:
    """Scale and amax history of n tensors.

    Attributes:
        recipe: Says how they are updated.
        forward: They belong to the forward pass.
        dtype: Element type of the tensors.
        scale: fp32 (n,), 1 at the beginning.
        amax_history: fp32 (L, n): the current step in row 0, the one before in row L-1.
    """

    def __init__(
        self, recipe: DelayedScaling, n: int, *, forward: bool, device: torch.device
    ) -> None:
        self.recipe = recipe
        self.forward = forward
        self.dtype = fp8_dtype(recipe.fp8_format, forward=forward)
        self.scale = torch.ones(n, dtype=torch.float32, device=device)
        self.amax_history = torch.zeros(
            recipe.amax_history_len, n, dtype=torch.float32, device=device
        )

    def matches(self, other: DelayedBuffers) -> bool:
        """Whether both hold equally many tensors of one element type over equally many steps."""
        return self.dtype is other.dtype and self.amax_history.shape == other.amax_history.shape

    @torch.no_grad()
    def update(self) -> None:
        """Ends a step: new scales from the history, which rolls by one row.

        A tensor whose amax is 0 was not used and keeps its state, unless the recipe brings
        callables of its own: those see every tensor.
        """
        recipe = self.recipe
        if callable(recipe.amax_compute_algo) or recipe.scaling_factor_compute_algo is not None:
            self._update_by_callables()
            return
        from qrole_kernels.reference import update_delayed_scaling

        history, scale = update_delayed_scaling(
            self.amax_history,
            self.scale,
            fp8_element(self.dtype),
            str(recipe.amax_compute_algo),
            recipe.margin,
        )
        self.amax_history.copy_(history)
        self.scale.copy_(scale)

    def _update_by_callables(self) -> None:
        recipe, history = self.recipe, self.amax_history
        if callable(recipe.amax_compute_algo):
            amax = recipe.amax_compute_algo(history)
        else:
            amax = history.amax(0) if recipe.amax_compute_algo == "max" else history[0].clone()
        rolled = history.roll(-1, 0)
        rolled[0] = 0.0
        history.copy_(rolled)
        largest = recipe.fp8_format.value[0 if self.forward else 1]
        if recipe.scaling_factor_compute_algo is not None:
            new = recipe.scaling_factor_compute_algo(amax, self.scale, largest, recipe)
        else:
            quotient = torch.full_like(amax, largest) / amax / 2**recipe.margin
            usable = amax.isfinite() & (amax > 0)
            new = torch.where(usable, quotient.clamp(max=_FLOAT32_MAX), self.scale)
        self.scale.copy_(new)


class DelayedScalingRecipeState(RecipeState):
    """Quantizers that view shared scale and history buffers.

    Attributes:
        buffers: The buffers; a state that inherits shares the very same object.
    """

    recipe: DelayedScaling

    def __init__(
        self,
        recipe: DelayedScaling,
        *,
        mode: str,
        num_quantizers: int = 1,
        device: torch.device | str | None = None,
        roles: Sequence[QuantizerRole | None] | None = None,
    ) -> None:
        super().__init__(
            recipe, mode=mode, num_quantizers=num_quantizers, device=device, roles=roles
        )
        self.buffers = DelayedBuffers(
            recipe, num_quantizers, forward=self.forward, device=device_of(device)
        )

    @property
    def dtype(self) -> DType:
        """Element type of the direction."""
        return self.buffers.dtype

    @property
    def scale(self) -> torch.Tensor:
        """fp32 (n,)."""
        return self.buffers.scale

    @property
    def amax_history(self) -> torch.Tensor:
        """fp32 (L, n)."""
        return self.buffers.amax_history

    @override
    def make_quantizers(self) -> list[Quantizer]:
        buffers = self.buffers
        return [
            Float8Quantizer(buffers.scale[i], buffers.amax_history[0][i], buffers.dtype)
            for i in range(self.num_quantizers)
        ]

    @override
    def inherit_state_from(self, other: RecipeState) -> bool:
        if not isinstance(other, DelayedScalingRecipeState):
            return False
        if not self.buffers.matches(other.buffers):
            return False
        self.buffers = other.buffers
        return True
