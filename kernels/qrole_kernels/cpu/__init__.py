"""Kernels for the processor, on raw memory and without torch.

They are compiled by llvmlite on first use and kept in the user's cache directory. Where llvmlite is
not installed, the same functions run on the torch reference, with one warning that says so.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qrole_kernels.cpu.host import (
        host_amax,
        host_amax_rows,
        host_dequantize_fp8,
        host_dequantize_fp8_block,
        host_dequantize_fp8_rows,
        host_dequantize_mxfp4,
        host_dequantize_mxfp8,
        host_dequantize_nvfp4,
        host_dequantize_nvfp4_rows,
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


def is_compiled() -> bool:
    """Whether the functions run as machine code; else they run on the torch reference."""
    return importlib.util.find_spec("llvmlite") is not None


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if is_compiled():
        module = importlib.import_module("qrole_kernels.cpu.host")
    else:
        warnings.warn(
            "llvmlite is not installed, so CPU quantization runs on the torch reference: the same "
            "results, about a hundred times slower. Install llvmlite to get the compiled kernels.",
            RuntimeWarning,
            stacklevel=2,
        )
        module = importlib.import_module("qrole_kernels.cpu.fallback")
    for exported in __all__:
        globals()[exported] = getattr(module, exported)
    return globals()[name]
