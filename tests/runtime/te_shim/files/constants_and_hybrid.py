"""Constants, the hybrid module, availability tests at import."""

import torch
import transformer_engine
import transformer_engine.pytorch as te
from transformer_engine.pytorch.constants import (
    MXFP8_BLOCK_SCALING_SIZE,
    NVFP4_BLOCK_SCALING_SIZE,
    FP8BwdTensorIdx,
    FP8FwdTensorIdx,
    TE_DType,
)
from transformer_engine.pytorch.tensor.hybrid_tensor import HybridQuantizer

if not (te.is_fp8_available() and te.is_mxfp8_available(return_reason=True)[0]):
    raise RuntimeError("no support")
if not (te.is_fp8_block_scaling_available() and te.is_nvfp4_available()):
    raise RuntimeError("no support")
assert transformer_engine.pytorch is te
assert (MXFP8_BLOCK_SCALING_SIZE, NVFP4_BLOCK_SCALING_SIZE) == (32, 16)
assert TE_DType[torch.bfloat16] is te.DType.kBFloat16
assert FP8FwdTensorIdx.GEMM2_INPUT == 3
assert FP8BwdTensorIdx.GRAD_OUTPUT2 == 2


def factory(role):
    return HybridQuantizer(
        rowwise_quantizer=te.IdentityQuantizer(), columnwise_quantizer=te.IdentityQuantizer()
    )


EXPECTED = ["high precision | high precision"] * 5
