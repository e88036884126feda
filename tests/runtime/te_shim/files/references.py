"""The Python references and their helper types."""

from transformer_engine.pytorch.custom_recipes.reference_current_scaling import (
    CurrentScalingQuantizerRef,
    current_scaling_ref_factory,
)
from transformer_engine.pytorch.custom_recipes.reference_nvfp4 import (
    NVFP4QuantizerRef,
    nvfp4_ref_rht_2d_factory,
)
from transformer_engine.pytorch.custom_recipes.reference_utils import Fp4Formats

assert isinstance(current_scaling_ref_factory(None), CurrentScalingQuantizerRef)


def factory(role):
    if role is None:
        return NVFP4QuantizerRef(dtype=Fp4Formats.E2M1, quant_tile_shape=(1, 16), with_rht=False)
    return nvfp4_ref_rht_2d_factory(role)


EXPECTED = [
    "NVFP4 RHT reference",
    "NVFP4 2D reference",
    "NVFP4 RHT reference",
    "NVFP4 RHT reference",
    "NVFP4 reference",
]
