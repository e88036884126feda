"""The entry points without llvmlite: the torch reference over the same memory, much slower.

Signatures and results are those of `qrole_kernels.cpu.host`. `threads` has no effect: torch uses
its own.
"""

from qrole_kernels.cpu.fallback.dequantize import (
    host_dequantize_fp8,
    host_dequantize_fp8_block,
    host_dequantize_fp8_rows,
    host_dequantize_mxfp4,
    host_dequantize_mxfp8,
    host_dequantize_nvfp4,
    host_dequantize_nvfp4_rows,
)
from qrole_kernels.cpu.fallback.quantize import (
    host_amax,
    host_amax_rows,
    host_hadamard16,
    host_quantize_fp8,
    host_quantize_fp8_block,
    host_quantize_fp8_rows,
    host_quantize_mxfp4,
    host_quantize_mxfp8,
    host_quantize_nvfp4,
    host_quantize_nvfp4_rows,
)

__all__ = [
    "host_amax",
    "host_amax_rows",
    "host_dequantize_fp8",
    "host_dequantize_fp8_block",
    "host_dequantize_fp8_rows",
    "host_dequantize_mxfp4",
    "host_dequantize_mxfp8",
    "host_dequantize_nvfp4",
    "host_dequantize_nvfp4_rows",
    "host_hadamard16",
    "host_quantize_fp8",
    "host_quantize_fp8_block",
    "host_quantize_fp8_rows",
    "host_quantize_mxfp4",
    "host_quantize_mxfp8",
    "host_quantize_nvfp4",
    "host_quantize_nvfp4_rows",
]
