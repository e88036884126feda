"""What TransformerEngine tells about the hardware: every format is emulated, so all are there."""

from __future__ import annotations

from qrole.recipes import DelayedScaling, Recipe

__all__ = [
    "check_fp8_support",
    "get_default_fp8_recipe",
    "get_default_recipe",
    "is_bf16_available",
    "is_fp8_available",
    "is_fp8_block_scaling_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
]


def is_fp8_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """True; with the (empty) reason why not, where it is asked for."""
    return (True, "") if return_reason else True


is_mxfp8_available = is_fp8_block_scaling_available = is_nvfp4_available = is_fp8_available
is_bf16_available = is_fp8_available


def check_fp8_support() -> tuple[bool, str]:
    """(True, "")."""
    return True, ""


def get_default_recipe() -> Recipe:
    """Delayed scaling, as on Hopper."""
    return DelayedScaling()


get_default_fp8_recipe = get_default_recipe
