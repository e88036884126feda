"""The compiled extension's enums, as older files use them."""

import transformer_engine_torch as tex
from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from transformer_engine.pytorch.tensor.float8_tensor import Float8Quantizer
from transformer_engine.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
from transformer_engine.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer

assert tex.FP8FwdTensors.GEMM1_WEIGHT == 1
assert tex.FP8BwdTensors.GRAD_INPUT1 == 1
assert Float8Quantizer.__init__ is not Float8BlockQuantizer.__init__


def factory(role):
    if role is not None and role.module_type == "dpa":
        return MXFP8Quantizer(tex.DType.kFloat8E5M2)
    return NVFP4Quantizer(
        fp4_dtype=tex.DType.kFloat4E2M1,
        with_rht=True,
        with_post_rht_amax=True,
        with_random_sign_mask=True,
    )


EXPECTED = ["NVFP4 RHT"] * 3 + ["MXFP8 E5M2", "NVFP4 RHT"]
