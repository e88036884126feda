"""How many tokens each expert is padded to."""

from __future__ import annotations

from qrole.recipes.base import Recipe
from qrole.recipes.custom import CustomRecipe

__all__ = ["get_align_size_for_quantization"]

_BY_KIND = {"mxfp8": 32, "nvfp4": 128}


def get_align_size_for_quantization(recipe: Recipe) -> int:
    """Multiple that `Fp8Padding` pads each expert's tokens to.

    A custom recipe says it by itself; its factory is not asked.
    """
    if isinstance(recipe, CustomRecipe):
        return recipe.quantization_alignment
    return _BY_KIND.get(recipe.kind, 16)
