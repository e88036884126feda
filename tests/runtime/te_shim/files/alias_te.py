"""Everything from the alias `te`."""

import transformer_engine.pytorch as te


def factory(role):
    if role is None or role.module_type != "linear":
        return te.IdentityQuantizer()
    if role.tensor_type == "weight":
        return te.MXFP8Quantizer(fp8_dtype=te.DType.kFloat8E4M3, with_2d_quantization=True)
    if role.tensor_type == "input":
        return te.HybridQuantizer(
            rowwise_quantizer=te.MXFP8Quantizer(te.DType.kFloat8E4M3, columnwise=False),
            columnwise_quantizer=te.NVFP4Quantizer(rowwise=False),
            columnwise_source="rowwise_dequantized",
        )
    return te.Float8CurrentScalingQuantizer(te.DType.kFloat8E5M2, device="cuda")


EXPECTED = [
    "MXFP8 E4M3 | NVFP4 (of row)",
    "MXFP8 E4M3 2D",
    "FP8 current E5M2",
    "high precision",
    "high precision",
]
