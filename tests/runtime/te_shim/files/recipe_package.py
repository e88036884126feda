"""A recipe built at module level, from both spellings of the recipe package."""

import torch
from transformer_engine.common import recipe
from transformer_engine.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
    MMParams,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    QParams,
    Recipe,
)
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.tensor import Float8BlockQuantizer, NVFP4Quantizer

assert recipe.CustomRecipe is CustomRecipe
assert issubclass(NVFP4BlockScaling, Recipe)
assert Format.HYBRID.value.max_bwd == 57344
assert MMParams().use_split_accumulator
assert not QParams().power_2_scale
BUILTIN = [DelayedScaling(), Float8CurrentScaling(), Float8BlockScaling(), MXFP8BlockScaling()]


class Precise:
    """A factory that is an object."""

    def __init__(self, device):
        self.device = device

    def __call__(self, role):
        tensor_type = role.tensor_type if role is not None else ""
        if tensor_type == "weight":
            return Float8BlockQuantizer(
                fp8_dtype=DType.kFloat8E4M3, rowwise=True, columnwise=True, block_scaling_dim=2
            )
        if tensor_type in ("input", "grad_output"):
            return Float8BlockQuantizer(
                fp8_dtype=DType.kFloat8E4M3,
                rowwise=True,
                columnwise=True,
                force_pow_2_scales=True,
                block_scaling_dim=1,
            )
        return NVFP4Quantizer()


factory = Precise(torch.device("cuda"))
RECIPE = CustomRecipe(qfactory=factory, fp8_dpa=True, quantization_alignment=64)

EXPECTED = [
    "FP8 block 1x128 E4M3",
    "FP8 block 128x128 E4M3",
    "FP8 block 1x128 E4M3",
    "NVFP4",
    "NVFP4",
]
