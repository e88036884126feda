"""Roles and requests from the quantization module; types in annotations."""

from transformer_engine.common.recipe import Format
from transformer_engine.pytorch import DType
from transformer_engine.pytorch.quantization import (
    DelayedScalingRequest,
    FP8GlobalStateManager,
    QuantizerRequest,
    QuantizerRole,
    get_align_size_for_quantization,
)
from transformer_engine.pytorch.quantized_tensor import Quantizer
from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer
from transformer_engine.pytorch.tensor.identity_tensor import IdentityQuantizer

assert not FP8GlobalStateManager.is_fp8_enabled()
assert callable(get_align_size_for_quantization)
ATTENTION = QuantizerRole(module_type="dpa", tensor_type="qkv", name="attention")
FORMATS = {ATTENTION: DType.kFloat8E4M3}


def factory(role: QuantizerRole | None) -> Quantizer | QuantizerRequest:
    if role in FORMATS:
        return Float8CurrentScalingQuantizer(FORMATS[role], "cuda")
    if role is None:
        return IdentityQuantizer()
    return DelayedScalingRequest(fp8_format=Format.HYBRID, amax_history_len=16)


EXPECTED = ["FP8 delayed HYBRID"] * 3 + ["FP8 current E4M3", "high precision"]
