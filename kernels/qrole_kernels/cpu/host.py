"""The entry points of the compiled kernels; `arguments` says what they have in common."""

from qrole_kernels.cpu.amax import host_amax, host_amax_rows
from qrole_kernels.cpu.fp8 import (
    host_dequantize_fp8,
    host_dequantize_fp8_rows,
    host_quantize_fp8,
    host_quantize_fp8_rows,
)
from qrole_kernels.cpu.fp8_block import host_dequantize_fp8_block, host_quantize_fp8_block
from qrole_kernels.cpu.hadamard import host_hadamard16
from qrole_kernels.cpu.mxfp4 import host_dequantize_mxfp4, host_quantize_mxfp4
from qrole_kernels.cpu.mxfp8 import host_dequantize_mxfp8, host_quantize_mxfp8
from qrole_kernels.cpu.nvfp4 import (
    host_dequantize_nvfp4,
    host_dequantize_nvfp4_rows,
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
