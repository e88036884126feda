"""Module and factory names between the first roles and today's."""

from transformer_engine.pytorch.custom_recipes.quantization_factory_examples import (
    nvfp4_linear_mxfp8_grouped_linear_factory,
)
from transformer_engine.pytorch.custom_recipes.quantization_recipes_base import (
    current_scaling_quantizer_factory,
    delayed_scaling_quantizer_factory,
    float8_block_scaling_quantizer_factory,
    mxfp8_quantizer_factory,
    nvfp4_quantizer_factory,
)
from transformer_engine.pytorch.custom_recipes.quantization_ref_current_scaling import (
    current_scaling_ref_quantizer_factory,
)
from transformer_engine.pytorch.custom_recipes.quantization_ref_nvfp4 import (
    nvfp4_ref_rht_2d_quantizer_factory,
)

assert delayed_scaling_quantizer_factory(None).amax_history_len == 1024
assert mxfp8_quantizer_factory(None) == nvfp4_linear_mxfp8_grouped_linear_factory.__globals__[
    "mxfp8_factory"
](None)
assert current_scaling_ref_quantizer_factory("linear_output") is None
assert nvfp4_ref_rht_2d_quantizer_factory("linear_weight").with_2d_quantization


def factory(role):
    if role is None:
        return nvfp4_quantizer_factory(role)
    if role.module_type == "dpa":
        return current_scaling_quantizer_factory(role)
    if role.tensor_type == "grad_output":
        return current_scaling_ref_quantizer_factory(role)
    return float8_block_scaling_quantizer_factory(role)


EXPECTED = [
    "FP8 block 1x128 E4M3",
    "FP8 block 128x128 E4M3",
    "FP8 current E5M2 reference",
    "FP8 current E4M3",
    "NVFP4 RHT",
]
NOTES = [
    "quantization_factory_examples is a module of older",
    "quantization_recipes_base is a module of older",
    "quantization_ref_current_scaling is a module of older",
    "quantization_ref_nvfp4 is a module of older",
]
