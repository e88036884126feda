"""From the slots of one module and direction to its quantizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

from qrole.dtypes import DType
from qrole.errors import ConfigError
from qrole.recipes import Format, Recipe
from qrole.roles import QuantizerRole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qrole.quantizers.base import Quantizer

__all__ = ["RecipeState", "device_of", "fp8_dtype"]

_TENSOR_TYPES = ("input", "weight", "output", "grad_output", "grad_input")
_BY_POSITION = {"forward": ("input", "weight", "output"), "backward": ("grad_output", "grad_input")}


def fp8_dtype(fp8_format: Format, *, forward: bool) -> DType:
    """Element type of a direction: HYBRID is E4M3 forward and E5M2 backward."""
    wide = fp8_format is Format.E5M2 or (fp8_format is Format.HYBRID and not forward)
    return DType.kFloat8E5M2 if wide else DType.kFloat8E4M3


def device_of(device: torch.device | str | None) -> torch.device:
    """The device that was asked for; the CPU where it is CUDA and there is none."""
    asked = torch.device(device) if device is not None else torch.device("cpu")
    if asked.type == "cuda" and not torch.cuda.is_available():
        return torch.device("cpu")
    return asked


class RecipeState(ABC):
    """Builds the quantizers of one module and direction, and holds what they share.

    Args:
        recipe: The recipe.
        mode: `forward` or `backward`.
        num_quantizers: Number of slots.
        device: Where shared buffers live.
        roles: One per slot, None for a boundary slot; None where the module has no list of roles.

    Raises:
        ConfigError: Another mode, or another number of roles.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        mode: str,
        num_quantizers: int = 1,
        device: torch.device | str | None = None,
        roles: Sequence[QuantizerRole | None] | None = None,
    ) -> None:
        if mode not in _BY_POSITION:
            raise ConfigError(
                f"a recipe state with mode={mode!r}",
                expected="'forward' or 'backward'",
                hint="build one state per direction",
            )
        if roles is not None and len(roles) != num_quantizers:
            raise ConfigError(
                f"{len(roles)} roles for {num_quantizers} quantizers",
                expected="RecipeState requires roles to match num_quantizers",
                hint="return one role, or None, per slot from get_quantizer_roles()",
            )
        self.recipe = recipe
        self.mode = mode
        self.num_quantizers = num_quantizers
        self.device = device_of(device)
        self.roles = None if roles is None else list(roles)

    @staticmethod
    def create(
        recipe: Recipe,
        *,
        mode: str,
        num_quantizers: int = 1,
        device: torch.device | str | None = None,
        roles: Sequence[QuantizerRole | None] | None = None,
    ) -> RecipeState:
        """The state that fits the recipe; the arguments are those of the class."""
        from qrole.state import STATES

        state = STATES.get(recipe.kind)
        if state is None:
            raise ConfigError(
                f"the recipe {type(recipe).__name__}",
                expected=f"one of the kinds {', '.join(STATES)}",
                hint="derive from one of the built-in recipes, or use CustomRecipe",
            )
        return state(recipe, mode=mode, num_quantizers=num_quantizers, device=device, roles=roles)

    @property
    def forward(self) -> bool:
        """Whether the slots are those of the forward pass."""
        return self.mode == "forward"

    def slot_role(self, index: int) -> QuantizerRole:
        """The slot's role; a bare one where it has none."""
        role = self.roles[index] if self.roles is not None else None
        return QuantizerRole() if role is None else role

    def slot_tensor_type(self, index: int) -> str:
        """The role's tensor type where it is one of a linear layer's, else what its position says.

        Positions repeat input, weight, output forward and grad_output, grad_input backward.
        """
        named = self.slot_role(index).tensor_type
        if named in _TENSOR_TYPES:
            return named
        by_position = _BY_POSITION[self.mode]
        return by_position[index % len(by_position)]

    @abstractmethod
    def make_quantizers(self) -> list[Quantizer]:
        """One new quantizer per slot, in slot order."""

    def inherit_state_from(self, other: RecipeState) -> bool:
        """Takes over the buffers of the state that this one replaces.

        Returns:
            Whether there was anything to take over, and it fits.
        """
        return False
