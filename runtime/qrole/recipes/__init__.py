"""Recipes: which quantizers a whole training run uses, under TransformerEngine's names."""

from qrole.recipes.alignment import get_align_size_for_quantization
from qrole.recipes.base import Format, IgnoredSettingWarning, MMParams, QParams, Recipe
from qrole.recipes.builtin import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from qrole.recipes.custom import CustomRecipe

__all__ = [
    "CustomRecipe",
    "DelayedScaling",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "Format",
    "IgnoredSettingWarning",
    "MMParams",
    "MXFP8BlockScaling",
    "NVFP4BlockScaling",
    "QParams",
    "Recipe",
    "get_align_size_for_quantization",
]
