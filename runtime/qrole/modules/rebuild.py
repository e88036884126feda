"""When quantizers are kept for another recipe, and what a new state takes over from an old one."""

from __future__ import annotations

from qrole.errors import ConfigError
from qrole.recipes import DelayedScaling, Recipe
from qrole.state import (
    CustomRecipeState,
    DelayedBuffers,
    DelayedScalingRecipeState,
    RecipeState,
)

__all__ = [
    "RoleCountError",
    "StaleQuantizersWarning",
    "buffers_of",
    "carry_history",
    "history_fits",
    "serves",
]


class StaleQuantizersWarning(UserWarning):
    """A role or factory changed, and TransformerEngine would go on with the old quantizers."""


class RoleCountError(ConfigError, AssertionError):
    """A module gives another number of roles than it has slots; TransformerEngine asserts it."""

    def __init__(self, module: str, given: int, slots: int, mode: str) -> None:
        super().__init__(
            f"{module} gives {given} roles for {slots} {mode} slots",
            expected="Recipe roles must match number of quantizers",
            hint="return one role, or None, per slot from get_quantizer_roles()",
        )


def buffers_of(state: RecipeState | None) -> DelayedBuffers | None:
    """The delayed-scaling buffers behind a state; None where it has none."""
    if isinstance(state, CustomRecipeState):
        state = state.delayed
    return state.buffers if isinstance(state, DelayedScalingRecipeState) else None


def history_fits(state: RecipeState, recipe: Recipe) -> bool:
    """Whether a state's amax history is as long as the recipe says; true without one."""
    if isinstance(recipe, DelayedScaling) and isinstance(state, DelayedScalingRecipeState):
        return recipe.amax_history_len == state.amax_history.shape[0]
    return True


def serves(state: RecipeState, recipe: Recipe) -> bool:
    """Whether a module keeps a state's quantizers for a recipe, by TransformerEngine's rules.

    A custom recipe needs to be the very object; of the built-in ones the class counts.
    """
    if recipe.custom():
        return state.recipe is recipe
    return recipe.kind == state.recipe.kind and history_fits(state, recipe)


def carry_history(old: RecipeState, new: RecipeState) -> None:
    """Has a state go on where the one that it replaces stopped.

    Delayed-scaling buffers are handed on; where the length of the amax history changed, scales and
    the latest steps are copied.
    """
    if new.inherit_state_from(old):
        return
    before, after = buffers_of(old), buffers_of(new)
    if before is None or after is None or before.dtype is not after.dtype:
        return
    if before.scale.shape == after.scale.shape:
        rows = min(len(before.amax_history), len(after.amax_history))
        after.scale.copy_(before.scale)
        after.amax_history[:rows].copy_(before.amax_history[:rows])
