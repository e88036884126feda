"""FP8 with one fp32 scale per 1x128 or 128x128 block."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from qrole_kernels.cuda.decode import decode_fp8_data
from qrole_kernels.cuda.launch import architecture, launch
from qrole_kernels.cuda.rounding import encode_fp8, scale_of_amax
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

BLOCK = 128


@triton.jit
def fp8_block_kernel(
    x,
    data,
    scale_inv,
    M,
    K,
    stride_m,
    stride_k,
    scale_m,
    scale_k,
    epsilon,
    ELEMENT: tl.constexpr,
    MAX: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
    VALUE_FOR_INF: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    ARCH: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLS: tl.constexpr,
):
    """Codes of ``x`` under the scale of each block's amax; stores 1/scale."""
    row0, col0 = tile_origin(K, TILE_ROWS, TILE_COLS)
    tile = widen(load_tile(x, row0, col0, M, K, stride_m, stride_k, TILE_ROWS, TILE_COLS))
    blocks = as_blocks(tile, BLOCK_ROWS, BLOCK_COLS)
    scale = scale_of_amax(block_amax(blocks), MAX, POWER_OF_TWO, epsilon, VALUE_FOR_INF)
    codes = encode_fp8(blocks * over_block(scale), ELEMENT, ARCH)
    store_tile(data, from_blocks(codes), row0, col0, M, K)
    store_tile(
        scale_inv,
        tl.math.div_rn(1.0, scale),
        row0 // BLOCK_ROWS,
        col0 // BLOCK_COLS,
        scale_m,
        scale_k,
    )


def _tile(x: Tensor, block_rows: int) -> Tile:
    return Tile(BLOCK if block_rows == BLOCK or column_major(x) else 32, BLOCK)


def quantize_fp8_block(
    x: Tensor, element: str, block_rows: int, power_of_two: bool = True, epsilon: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Quantize (M, K) in blocks of (block_rows, 128), block_rows 1 or 128.

    Returns:
        Codes uint8 (M, K), 1/scale fp32 (ceil(M/block_rows), ceil(K/128)).
    """
    check_matrix(x)
    check_choice("block_rows", block_rows, (1, BLOCK))
    arch = architecture(x.device)
    rows, cols = x.shape
    blocks = (ceil_div(rows, block_rows), ceil_div(cols, BLOCK))
    data = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    scale_inv = torch.empty(blocks, dtype=torch.float32, device=x.device)
    tile = _tile(x, block_rows)
    launch(
        fp8_block_kernel,
        tile.programs(rows, cols),
        matrix_arguments(x)
        | {"data": data, "scale_inv": scale_inv, "scale_m": blocks[0], "scale_k": blocks[1]}
        | {"epsilon": float(epsilon)},
        tile.constants()
        | {
            "ELEMENT": element,
            "MAX": fp8_format(element).max,
            "POWER_OF_TWO": power_of_two,
            "VALUE_FOR_INF": torch.finfo(x.dtype).max,
            "BLOCK_ROWS": block_rows,
            "BLOCK_COLS": BLOCK,
            "ARCH": arch,
        },
        num_warps=8 if block_rows == BLOCK else 4,
    )
    return data, scale_inv


def dequantize_fp8_block(
    data: Tensor, scale_inv: Tensor, element: str, block_rows: int, dtype: torch.dtype
) -> Tensor:
    """Decode codes (M, K) with compact block scales: fp32 product, one rounding to ``dtype``."""
    check_choice("block_rows", block_rows, (1, BLOCK))
    blocks = (ceil_div(data.shape[0], block_rows), ceil_div(data.shape[1], BLOCK))
    check_shape("scale_inv", scale_inv, blocks)
    return decode_fp8_data(data, scale_inv, element, (block_rows, BLOCK), dtype)
