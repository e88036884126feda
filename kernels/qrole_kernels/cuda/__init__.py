"""The functions of the reference as Triton kernels, on CUDA tensors.

With ``TRITON_INTERPRET=1`` set before triton is first imported they run on CPU tensors, slowly and
for tests. Importing this package imports triton, which exists on Linux only.
"""

from qrole_kernels.cuda.amax import amax, amax_rows
from qrole_kernels.cuda.fp8 import (
    dequantize_fp8,
    dequantize_fp8_rows,
    fp8_scale,
    quantize_fp8,
    quantize_fp8_current,
    quantize_fp8_rows,
)
from qrole_kernels.cuda.fp8_block import dequantize_fp8_block, quantize_fp8_block
from qrole_kernels.cuda.hadamard import hadamard16
from qrole_kernels.cuda.layout import pad_scales, swizzle_scales, unswizzle_scales
from qrole_kernels.cuda.mxfp4 import dequantize_mxfp4, quantize_mxfp4
from qrole_kernels.cuda.mxfp8 import dequantize_mxfp8, quantize_mxfp8
from qrole_kernels.cuda.nvfp4 import dequantize_nvfp4, quantize_nvfp4

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
]
