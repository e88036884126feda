"""The state of a CustomRecipe: what the factory answered, with requests resolved."""

from __future__ import annotations

import warnings
from dataclasses import fields
from typing import TYPE_CHECKING

from typing_extensions import override

from qrole.errors import ConfigError, FactoryError
from qrole.factories.string_roles import adapt_string_roles
from qrole.quantizers.base import Quantizer
from qrole.recipes import CustomRecipe, DelayedScaling
from qrole.roles import DelayedScalingRequest, QuantizerRole
from qrole.state.base import RecipeState, fp8_dtype
from qrole.state.delayed import DelayedScalingRecipeState

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["BareRolesWarning", "CustomRecipeState"]


class BareRolesWarning(UserWarning):
    """A module has no list of roles, so that the factory cannot tell its slots apart."""


class CustomRecipeState(RecipeState):
    """Asks the factory once per slot, in slot order, whenever quantizers are made.

    Attributes:
        delayed: The state behind the slots that asked for delayed scaling; None without such.
    """

    recipe: CustomRecipe

    def __init__(
        self,
        recipe: CustomRecipe,
        *,
        mode: str,
        num_quantizers: int = 1,
        device: torch.device | str | None = None,
        roles: Sequence[QuantizerRole | None] | None = None,
    ) -> None:
        super().__init__(
            recipe, mode=mode, num_quantizers=num_quantizers, device=device, roles=roles
        )
        if recipe.qfactory is None:
            raise ConfigError(
                "a CustomRecipe whose qfactory is None",
                expected="CustomRecipe requires `qfactory`",
                hint="pass the factory function",
            )
        self._factory = adapt_string_roles(recipe.qfactory)
        self.delayed: DelayedScalingRecipeState | None = None

    @override
    def make_quantizers(self) -> list[Quantizer]:
        """One quantizer per slot.

        Raises:
            FactoryError: The factory returned None or no quantizer, or its requests for delayed
                scaling differ. What the factory itself raises passes.
        """
        quantizers: dict[int, Quantizer] = {}
        requests: dict[int, DelayedScalingRequest] = {}
        for index, role in enumerate(self._asked_roles()):
            answer = self._ask(index, role)
            if isinstance(answer, Quantizer):
                quantizers[index] = answer
            else:
                requests[index] = answer
        quantizers |= self._delayed_quantizers(requests)
        return [quantizers[i] for i in range(self.num_quantizers)]

    def _asked_roles(self) -> list[QuantizerRole | None]:
        """What the factory is called with: None for boundary slots, bare roles without a list."""
        if self.roles is not None:
            return self.roles
        warnings.warn(
            "CustomRecipeState got no list of roles: the factory gets a bare QuantizerRole() for "
            f"each of the {self.num_quantizers} {self.mode} slots; override get_quantizer_roles() "
            "in the module or op",
            BareRolesWarning,
            stacklevel=3,
        )
        return [QuantizerRole()] * self.num_quantizers

    def _ask(self, index: int, role: QuantizerRole | None) -> Quantizer | DelayedScalingRequest:
        answer: object = self._factory(role)
        if isinstance(answer, (Quantizer, DelayedScalingRequest)):
            return answer
        given = "None" if answer is None else f"{answer!r} of type {type(answer).__name__}"
        raise FactoryError(
            f"the factory returned {given} for {self.mode} slot {index} with role {role}",
            expected="a quantizer or a DelayedScalingRequest",
            hint="return IdentityQuantizer() for a tensor that stays in high precision",
        )

    def _delayed_quantizers(
        self, requests: dict[int, DelayedScalingRequest]
    ) -> dict[int, Quantizer]:
        """Quantizers of the slots that asked for delayed scaling, all views of one state."""
        if not requests:
            self.delayed = None
            return {}
        first = next(iter(requests))
        for index, request in requests.items():
            _check_equal(first, requests[first], index, request)
        self.delayed = self._delayed_state(requests[first], len(requests))
        return dict(zip(requests, self.delayed.make_quantizers(), strict=True))

    def _delayed_state(self, request: DelayedScalingRequest, n: int) -> DelayedScalingRecipeState:
        """The state at hand, where it holds n tensors of that type and history; else a new one."""
        old = self.delayed
        dtype = fp8_dtype(request.fp8_format, forward=self.forward)
        if (
            old is not None
            and old.dtype is dtype
            and old.amax_history.shape == (request.amax_history_len, n)
        ):
            return old
        options = {f.name: getattr(request, f.name) for f in fields(request)}
        inner = DelayedScaling(**options, backward_override=None)
        return DelayedScalingRecipeState(
            inner, mode=self.mode, num_quantizers=n, device=self.device
        )

    @override
    def inherit_state_from(self, other: RecipeState) -> bool:
        if not isinstance(other, CustomRecipeState) or other.delayed is None:
            return False
        self.delayed = other.delayed
        return True


def _check_equal(
    i: int, first: DelayedScalingRequest, j: int, other: DelayedScalingRequest
) -> None:
    for name in (f.name for f in fields(first)):
        ours, theirs = getattr(first, name), getattr(other, name)
        if ours != theirs:
            raise FactoryError(
                f"DelayedScalingRequests with {name}={ours!r} for slot {i} and {name}={theirs!r} "
                f"for slot {j} of one module and direction",
                expected="All DelayedScalingRequests in one CustomRecipeState must match",
                hint="return equal requests, or a quantizer for one of the slots",
            )
