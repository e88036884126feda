"""Every kernel with the arguments it typically gets, to be compiled ahead of time.

The tensors are on the meta device: they have shapes and dtypes, and no values. Names say what is
called on what; `t` stands for a transposed view, whose columns are contiguous, `ragged` for rows
that are no multiple of 16 bytes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from qrole_kernels import cuda
from qrole_kernels.cuda.finish import finish
from qrole_kernels.cuda.triton_gemm import gemm
from qrole_kernels.cuda_backends import Backend, backends
from qrole_kernels.operand import Operand

ROWS, COLS, ODD = 4096, 4096, 4090
BF16, F32 = torch.bfloat16, torch.float32


def _matrix(dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(ROWS, COLS, dtype=dtype, device="meta")


def _bytes(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.uint8, device="meta")


def _floats(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


X, XT, X32 = _matrix(), _matrix().t(), _matrix(F32)
SCALAR, PER_ROW = _floats(), _floats(ROWS)
CODES, PACKED = _bytes(ROWS, COLS), _bytes(ROWS, COLS // 2)
SCALES_16, SCALES_32 = _bytes(ROWS, COLS // 16), _bytes(ROWS, COLS // 32)

_OPERANDS = {
    "fp8_tensor": Operand("fp8_tensor", CODES, SCALAR),
    "fp8_tensor t": Operand("fp8_tensor", CODES.t(), SCALAR),
    "fp8_tensor e5m2": Operand("fp8_tensor", CODES, SCALAR, element="e5m2"),
    "fp8_tensor ragged": Operand("fp8_tensor", _bytes(ROWS, ODD), SCALAR),
    "fp8_rows": Operand("fp8_rows", CODES, _floats(ROWS, 1)),
    "fp8_block_1d": Operand("fp8_block_1d", CODES, _floats(ROWS, COLS // 128)),
    "fp8_block_1d t": Operand("fp8_block_1d", CODES.t(), _floats(COLS // 128, ROWS).t()),
    "fp8_block_2d": Operand("fp8_block_2d", CODES, _floats(ROWS // 128, COLS // 128)),
    "mxfp8": Operand("mxfp8", CODES, SCALES_32),
    "mxfp8 t": Operand("mxfp8", CODES.t(), _bytes(COLS // 32, ROWS).t()),
    "mxfp8 e5m2": Operand("mxfp8", CODES, SCALES_32, element="e5m2"),
    "mxfp4": Operand("mxfp4", PACKED, SCALES_32),
    "nvfp4": Operand("nvfp4", PACKED, SCALES_16, SCALAR),
    "nvfp4 rows": Operand("nvfp4", PACKED, SCALES_16, PER_ROW),
    "nvfp4 ragged": Operand("nvfp4", _bytes(ROWS, ODD // 2), _bytes(ROWS, COLS // 16), SCALAR),
}


def _finish(name: str, bias: Tensor | None) -> Tensor:
    return finish(X32, _OPERANDS[name], _OPERANDS[name], BF16, bias)


CALLS: dict[str, Callable[[], object]] = {
    "amax": lambda: cuda.amax(X),
    "amax_rows": lambda: cuda.amax_rows(X),
    "amax_rows t": lambda: cuda.amax_rows(XT),
    "fp8_scale": lambda: cuda.fp8_scale(PER_ROW, "e4m3", False, 0.0, 1.0),
    "fp8 given scale": lambda: cuda.quantize_fp8(X, SCALAR, "e4m3"),
    "fp8 given scale e5m2": lambda: cuda.quantize_fp8(X, SCALAR, "e5m2"),
    "fp8 given scale t": lambda: cuda.quantize_fp8(XT, SCALAR, "e4m3"),
    "fp8 current": lambda: cuda.quantize_fp8_current(X, "e4m3"),
    "fp8 rows": lambda: cuda.quantize_fp8_rows(X, "e4m3"),
    "fp8 1x128": lambda: cuda.quantize_fp8_block(X, "e4m3", 1),
    "fp8 1x128 t": lambda: cuda.quantize_fp8_block(XT, "e4m3", 1),
    "fp8 128x128": lambda: cuda.quantize_fp8_block(X, "e4m3", 128),
    "fp8 128x128 fp32": lambda: cuda.quantize_fp8_block(X32, "e4m3", 128, False),
    "mxfp8 1x32": lambda: cuda.quantize_mxfp8(X, "e4m3", 1, 32),
    "mxfp8 1x32 fp32": lambda: cuda.quantize_mxfp8(X32, "e4m3", 1, 32),
    "mxfp8 32x1": lambda: cuda.quantize_mxfp8(X, "e4m3", 32, 1),
    "mxfp8 32x32": lambda: cuda.quantize_mxfp8(X, "e4m3", 32, 32),
    "mxfp4": lambda: cuda.quantize_mxfp4(X, "even"),
    "nvfp4": lambda: cuda.quantize_nvfp4(X, SCALAR, 1),
    "nvfp4 fp32": lambda: cuda.quantize_nvfp4(X32, SCALAR, 1),
    "nvfp4 t": lambda: cuda.quantize_nvfp4(XT, SCALAR, 1),
    "nvfp4 16x16": lambda: cuda.quantize_nvfp4(X, SCALAR, 16),
    "nvfp4 per row": lambda: cuda.quantize_nvfp4(X, PER_ROW, 1),
    "nvfp4 stochastic": lambda: cuda.quantize_nvfp4(X, SCALAR, 1, random_bits=CODES),
    "nvfp4 stochastic t": lambda: cuda.quantize_nvfp4(XT, SCALAR, 1, random_bits=CODES),
    "nvfp4 4over6": lambda: cuda.quantize_nvfp4(X, SCALAR, 1, 256, "mae"),
    "nvfp4 4over6 16x16": lambda: cuda.quantize_nvfp4(X, SCALAR, 16, 256, "mse"),
    "decode fp8": lambda: cuda.dequantize_fp8(CODES, SCALAR, "e4m3", BF16),
    "decode fp8 e5m2": lambda: cuda.dequantize_fp8(CODES, SCALAR, "e5m2", F32),
    "decode fp8 rows": lambda: cuda.dequantize_fp8_rows(CODES, _floats(ROWS, 1), "e4m3", BF16),
    "decode fp8 1x128": lambda: cuda.dequantize_fp8_block(
        CODES, _floats(ROWS, COLS // 128), "e4m3", 1, BF16
    ),
    "decode mxfp8 1x32": lambda: cuda.dequantize_mxfp8(CODES, SCALES_32, "e4m3", 1, 32, BF16),
    "decode mxfp8 32x1": lambda: cuda.dequantize_mxfp8(
        CODES, _bytes(ROWS // 32, COLS), "e4m3", 32, 1, BF16
    ),
    "decode nvfp4": lambda: cuda.dequantize_nvfp4(PACKED, SCALES_16, SCALAR, 448, BF16),
    "decode mxfp4": lambda: cuda.dequantize_mxfp4(PACKED, SCALES_32, BF16),
    "hadamard": lambda: cuda.hadamard16(X),
    "hadamard t": lambda: cuda.hadamard16(XT),
    "pad": lambda: cuda.pad_scales(SCALES_16),
    "swizzle": lambda: cuda.swizzle_scales(SCALES_16),
    "unswizzle": lambda: cuda.unswizzle_scales(_bytes(ROWS * COLS // 16), ROWS, COLS // 16),
    "finish fp8_rows": lambda: _finish("fp8_rows", PER_ROW),
    "finish mxfp8": lambda: _finish("mxfp8", None),
    "finish nvfp4": lambda: _finish("nvfp4 rows", PER_ROW),
}

_PAIRS = [
    ("fp8_tensor", "fp8_tensor"),
    ("fp8_tensor t", "fp8_tensor t"),
    ("fp8_tensor e5m2", "fp8_tensor"),
    ("fp8_tensor ragged", "fp8_tensor ragged"),
    ("fp8_rows", "fp8_rows"),
    ("fp8_block_1d", "fp8_block_1d"),
    ("fp8_block_1d t", "fp8_block_1d t"),
    ("fp8_block_1d", "fp8_block_2d"),
    ("fp8_block_2d", "fp8_block_1d"),
    ("mxfp8", "mxfp8"),
    ("mxfp8 t", "mxfp8 t"),
    ("mxfp8 e5m2", "mxfp8"),
    ("mxfp4", "mxfp4"),
    ("nvfp4", "nvfp4"),
    ("nvfp4 rows", "nvfp4"),
    ("nvfp4 ragged", "nvfp4 ragged"),
]


def _gemm(left: str, right: str) -> Callable[[], object]:
    return lambda: gemm(_OPERANDS[left], _OPERANDS[right], BF16, PER_ROW)


def gemm_calls(arch: int) -> dict[str, Callable[[], object]]:
    """The products that triton has a kernel for on compute capability `arch` (90 for 9.0)."""
    return {
        f"gemm {left} x {right}": _gemm(left, right)
        for left, right in _PAIRS
        if Backend.TRITON in backends(_OPERANDS[left], _OPERANDS[right], arch, None)
    }


def calls_for(arch: int) -> dict[str, Callable[[], object]]:
    """All calls that compute capability `arch` has kernels for."""
    return CALLS | gemm_calls(arch)
