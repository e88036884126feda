"""A file of release 2.9: string roles, None for no quantization."""

from transformer_engine.pytorch.custom_recipes import utils
from transformer_engine.pytorch.custom_recipes.quantization_nvfp4 import NVFP4QuantizerRef


def factory(role):
    if role == "linear_weight":
        return NVFP4QuantizerRef(dtype=utils.Fp4Formats.E2M1, quant_tile_shape=(16, 16))
    if role in ("linear_input", "linear_grad_output"):
        return NVFP4QuantizerRef(
            dtype=utils.Fp4Formats.E2M1,
            quant_tile_shape=(1, 16),
            pow_2_scales=False,
            with_rht=True,
        )
    return None


EXPECTED = [
    "NVFP4 RHT reference",
    "NVFP4 2D reference",
    "NVFP4 RHT reference",
    "high precision",
    "high precision",
]
NOTES = ["quantization_nvfp4 is a module of older", "custom_recipes.utils is a module of older",
         "factory of older_string_roles.py takes the string roles"]  # fmt: skip
