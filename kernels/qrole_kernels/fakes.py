"""Outputs of the right shape, dtype and device for each op, without values (meta and fake tensors).

Signatures are those of `qrole_kernels.reference`.
"""

import torch
from torch import Tensor

from qrole_kernels.layout import TILE_COLS, TILE_ROWS
from qrole_kernels.reference.blocks import ceil_div
from qrole_kernels.reference.hadamard import SIGN_MASK


def _bytes(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.uint8)


def _floats(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)


def _round_up(size: int, multiple: int) -> int:
    return ceil_div(size, multiple) * multiple


def amax(x: Tensor) -> Tensor:
    """An fp32 scalar."""
    return _floats(x)


def amax_rows(x: Tensor) -> Tensor:
    """One fp32 per row."""
    return _floats(x, x.shape[0])


def fp8_scale(
    amax: Tensor, element: str, power_of_two: bool, epsilon: float, value_for_inf: float
) -> Tensor:
    """One fp32 per amax."""
    return _floats(amax, *amax.shape)


def quantize_fp8(x: Tensor, scale: Tensor, element: str) -> Tensor:
    """Codes."""
    return _bytes(x, *x.shape)


def quantize_fp8_current(
    x: Tensor, element: str, power_of_two: bool = False, epsilon: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes and three fp32 scalars."""
    return _bytes(x, *x.shape), _floats(x), _floats(x), _floats(x)


def quantize_fp8_rows(x: Tensor, element: str) -> tuple[Tensor, Tensor]:
    """Codes and a column of scales."""
    return _bytes(x, *x.shape), _floats(x, x.shape[0], 1)


def quantize_fp8_block(
    x: Tensor, element: str, block_rows: int, power_of_two: bool = True, epsilon: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Codes and one fp32 per block."""
    scales = _floats(x, ceil_div(x.shape[0], block_rows), ceil_div(x.shape[1], 128))
    return _bytes(x, *x.shape), scales


def quantize_mxfp8(
    x: Tensor, element: str, block_rows: int, block_cols: int
) -> tuple[Tensor, Tensor]:
    """Codes and one byte per block."""
    scales = _bytes(x, ceil_div(x.shape[0], block_rows), ceil_div(x.shape[1], block_cols))
    return _bytes(x, *x.shape), scales


def quantize_nvfp4(
    x: Tensor,
    amax: Tensor,
    block_rows: int,
    e4m3_max: int = 448,
    four_over_six: str = "",
    random_bits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Packed codes and one byte per row and 16 columns."""
    rows, cols = x.shape
    return _bytes(x, rows, ceil_div(cols, 2)), _bytes(x, rows, ceil_div(cols, 16))


def quantize_mxfp4(x: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """Packed codes and one byte per row and 32 columns."""
    rows, cols = x.shape
    return _bytes(x, rows, ceil_div(cols, 2)), _bytes(x, rows, ceil_div(cols, 32))


def dequantize_fp8(data: Tensor, scale_inv: Tensor, element: str, dtype: torch.dtype) -> Tensor:
    """Values of the shape of the codes."""
    return data.new_empty(data.shape, dtype=dtype)


def dequantize_fp8_rows(
    data: Tensor, scale_inv: Tensor, element: str, dtype: torch.dtype
) -> Tensor:
    """Values of the shape of the codes."""
    return data.new_empty(data.shape, dtype=dtype)


def dequantize_fp8_block(
    data: Tensor, scale_inv: Tensor, element: str, block_rows: int, dtype: torch.dtype
) -> Tensor:
    """Values of the shape of the codes."""
    return data.new_empty(data.shape, dtype=dtype)


def dequantize_mxfp8(
    data: Tensor,
    scale: Tensor,
    element: str,
    block_rows: int,
    block_cols: int,
    dtype: torch.dtype,
) -> Tensor:
    """Values of the shape of the codes."""
    return data.new_empty(data.shape, dtype=dtype)


def dequantize_nvfp4(
    packed: Tensor, scale: Tensor, amax: Tensor, e4m3_max: int, dtype: torch.dtype
) -> Tensor:
    """Two values per byte."""
    return packed.new_empty((packed.shape[0], 2 * packed.shape[1]), dtype=dtype)


def dequantize_mxfp4(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Two values per byte."""
    return packed.new_empty((packed.shape[0], 2 * packed.shape[1]), dtype=dtype)


def hadamard16(x: Tensor, sign_mask: int = SIGN_MASK) -> Tensor:
    """Values of the shape of the input."""
    return x.new_empty(x.shape)


def matmul_f32(a: Tensor, b: Tensor, bf16_exact: bool) -> Tensor:
    """The fp32 product."""
    return _floats(a, a.shape[0], b.shape[0])


def matmul_fp8_block(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_block_rows: int,
    b_block_rows: int,
) -> Tensor:
    """The fp32 product."""
    return _floats(a, a.shape[0], b.shape[0])


def pad_scales(
    scale: Tensor, row_multiple: int = TILE_ROWS, col_multiple: int = TILE_COLS
) -> Tensor:
    """Scales of the padded shape."""
    rows, cols = scale.shape
    return scale.new_empty((_round_up(rows, row_multiple), _round_up(cols, col_multiple)))


def swizzle_scales(scale: Tensor) -> Tensor:
    """Flat scales of the padded size."""
    rows, cols = scale.shape
    return scale.new_empty((_round_up(rows, TILE_ROWS) * _round_up(cols, TILE_COLS),))


def unswizzle_scales(swizzled: Tensor, rows: int, cols: int) -> Tensor:
    """Scales of the compact shape."""
    return swizzled.new_empty((rows, cols))
