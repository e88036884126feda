"""The reference: every function in plain torch, readable, on any device.

This is the oracle that the CPU and CUDA kernels are held to, bit for bit; `qrole_kernels.ops` has
the same functions. Conventions: `x` is a matrix (M, K) of fp32, bf16 or fp16; codes and scales that
are not fp32 are raw bytes (uint8); scales are compact; elements missing in edge blocks count as
zero; NaN never enters an amax. Sign and payload of a decoded NaN are not defined.
"""

from qrole_kernels.layout import pad_scales, swizzle_scales, unswizzle_scales
from qrole_kernels.reference.blocks import amax, amax_rows
from qrole_kernels.reference.fp8 import (
    dequantize_fp8,
    dequantize_fp8_rows,
    fp8_scale,
    quantize_fp8,
    quantize_fp8_current,
    quantize_fp8_rows,
    update_delayed_scaling,
)
from qrole_kernels.reference.fp8_block import dequantize_fp8_block, quantize_fp8_block
from qrole_kernels.reference.hadamard import hadamard16
from qrole_kernels.reference.matmul import matmul_f32, matmul_fp8_block
from qrole_kernels.reference.mxfp4 import dequantize_mxfp4, quantize_mxfp4
from qrole_kernels.reference.mxfp8 import dequantize_mxfp8, quantize_mxfp8
from qrole_kernels.reference.nvfp4 import dequantize_nvfp4, quantize_nvfp4

__all__ = [
    "amax",
    "amax_rows",
    "dequantize_fp8",
    "dequantize_fp8_block",
    "dequantize_fp8_rows",
    "dequantize_mxfp4",
    "dequantize_mxfp8",
    "dequantize_nvfp4",
    "fp8_scale",
    "hadamard16",
    "matmul_f32",
    "matmul_fp8_block",
    "pad_scales",
    "quantize_fp8",
    "quantize_fp8_block",
    "quantize_fp8_current",
    "quantize_fp8_rows",
    "quantize_mxfp4",
    "quantize_mxfp8",
    "quantize_nvfp4",
    "swizzle_scales",
    "unswizzle_scales",
    "update_delayed_scaling",
]
