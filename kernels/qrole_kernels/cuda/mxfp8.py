"""MXFP8: one E8M0 scale per 32 elements."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from qrole_kernels.cuda.decode import decode_fp8_data
from qrole_kernels.cuda.launch import architecture, launch
from qrole_kernels.cuda.rounding import e8m0_reciprocal, encode_e8m0, encode_fp8
from qrole_kernels.cuda.tiles import (
    Tile,
    as_blocks,
    block_amax,
    column_major,
    from_blocks,
    load_tile,
    matrix_arguments,
    over_block,
    store_tile,
    tile_origin,
    widen,
)
from qrole_kernels.formats import fp8_format
from qrole_kernels.reference.arguments import check_choice, check_matrix, check_shape
from qrole_kernels.reference.blocks import ceil_div
from qrole_kernels.reference.mxfp8 import BLOCKS


@triton.jit
def mxfp8_kernel(
    x,
    data,
    scale,
    M,
    K,
    stride_m,
    stride_k,
    scale_m,
    scale_k,
    ELEMENT: tl.constexpr,
    INVERSE_MAX: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    ARCH: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLS: tl.constexpr,
):
    """Codes of ``x`` and one exponent byte per block."""
    row0, col0 = tile_origin(K, TILE_ROWS, TILE_COLS)
    tile = widen(load_tile(x, row0, col0, M, K, stride_m, stride_k, TILE_ROWS, TILE_COLS))
    blocks = as_blocks(tile, BLOCK_ROWS, BLOCK_COLS)
    byte = encode_e8m0(block_amax(blocks) * INVERSE_MAX)
    codes = encode_fp8(blocks * over_block(e8m0_reciprocal(byte)), ELEMENT, ARCH)
    store_tile(data, from_blocks(codes), row0, col0, M, K)
    store_tile(
        scale,
        byte.to(tl.uint8),
        row0 // BLOCK_ROWS,
        col0 // BLOCK_COLS,
        scale_m,
        scale_k,
    )


def _tile(x: Tensor, block_rows: int, block_cols: int) -> Tile:
    if column_major(x):
        return Tile(128, 32)
    # One warp's loads span 256 columns: blocks of one column are then reduced within threads.
    return Tile(32, 256) if (block_rows, block_cols) == (32, 1) else Tile(32, 128)


def quantize_mxfp8(
    x: Tensor, element: str, block_rows: int, block_cols: int
) -> tuple[Tensor, Tensor]:
    """Quantize (M, K) in blocks of (1, 32) row-wise, (32, 1) column-wise or (32, 32).

    Returns:
        Codes uint8 (M, K), E8M0 scales uint8 (ceil(M/block_rows), ceil(K/block_cols)).
    """
    check_matrix(x)
    check_choice("(block_rows, block_cols)", (block_rows, block_cols), BLOCKS)
    arch = architecture(x.device)
    rows, cols = x.shape
    blocks = (ceil_div(rows, block_rows), ceil_div(cols, block_cols))
    data = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    scale = torch.empty(blocks, dtype=torch.uint8, device=x.device)
    tile = _tile(x, block_rows, block_cols)
    launch(
        mxfp8_kernel,
        tile.programs(rows, cols),
        matrix_arguments(x)
        | {"data": data, "scale": scale, "scale_m": blocks[0], "scale_k": blocks[1]},
        tile.constants()
        | {
            "ELEMENT": element,
            "INVERSE_MAX": 1.0 / fp8_format(element).max,
            "BLOCK_ROWS": block_rows,
            "BLOCK_COLS": block_cols,
            "ARCH": arch,
        },
    )
    return data, scale


def dequantize_mxfp8(
    data: Tensor,
    scale: Tensor,
    element: str,
    block_rows: int,
    block_cols: int,
    dtype: torch.dtype,
) -> Tensor:
    """Decode codes (M, K) with compact E8M0 scales: fp32 product, one rounding to ``dtype``."""
    check_choice("(block_rows, block_cols)", (block_rows, block_cols), BLOCKS)
    blocks = (ceil_div(data.shape[0], block_rows), ceil_div(data.shape[1], block_cols))
    check_shape("scale", scale, blocks)
    return decode_fp8_data(data, scale, element, (block_rows, block_cols), dtype)
