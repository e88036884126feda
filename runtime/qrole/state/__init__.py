"""Recipe states: the quantizers of one module and direction, and what they share between steps."""

from __future__ import annotations

from qrole.state.base import RecipeState
from qrole.state.builtin import (
    Float8BlockScalingRecipeState,
    Float8CurrentScalingRecipeState,
    MXFP8BlockScalingRecipeState,
    NVFP4BlockScalingRecipeState,
)
from qrole.state.custom import BareRolesWarning, CustomRecipeState
from qrole.state.delayed import DelayedBuffers, DelayedScalingRecipeState
from qrole.state.registry import is_first_module, register, update_delayed_scaling

__all__ = [
    "STATES",
    "BareRolesWarning",
    "CustomRecipeState",
    "DelayedBuffers",
    "DelayedScalingRecipeState",
    "Float8BlockScalingRecipeState",
    "Float8CurrentScalingRecipeState",
    "MXFP8BlockScalingRecipeState",
    "NVFP4BlockScalingRecipeState",
    "RecipeState",
    "is_first_module",
    "register",
    "update_delayed_scaling",
]

#: The state class of each kind of recipe.
STATES: dict[str, type[RecipeState]] = {
    "delayed": DelayedScalingRecipeState,
    "float8_current_scaling": Float8CurrentScalingRecipeState,
    "float8_block_scaling": Float8BlockScalingRecipeState,
    "mxfp8": MXFP8BlockScalingRecipeState,
    "nvfp4": NVFP4BlockScalingRecipeState,
    "custom": CustomRecipeState,
}
