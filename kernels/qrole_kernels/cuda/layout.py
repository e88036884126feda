"""Scale layouts that GEMMs want: padding, and the 128x4 tiles of cuBLAS."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from qrole_kernels.cuda.launch import launch
from qrole_kernels.cuda.tiles import Tile, load_tile, matrix_arguments, store_tile, tile_origin
from qrole_kernels.layout import TILE_COLS, TILE_ROWS, check_swizzled
from qrole_kernels.reference.blocks import ceil_div

TILES = 8
"""128x4 tiles that one program moves; they are neighbours along the columns."""


@triton.jit
def pad_scales_kernel(
    x,
    out,
    M,
    K,
    stride_m,
    stride_k,
    padded_m,
    padded_k,
    TILE_ROWS: tl.constexpr,
    TILE_COLS: tl.constexpr,
):
    """``out`` (padded_m, padded_k): ``x`` (M, K) and zeros."""
    row0, col0 = tile_origin(padded_k, TILE_ROWS, TILE_COLS)
    tile = load_tile(x, row0, col0, M, K, stride_m, stride_k, TILE_ROWS, TILE_COLS)
    store_tile(out, tile, row0, col0, padded_m, padded_k)


@triton.jit
def _places(tiles_along, TILES: tl.constexpr):
    """Where the (TILES, 32, 4, 4) scales of this program lie.

    Returns:
        Row, column, place in the swizzled scales, and whether the tile exists; these broadcast.
    """
    steps = tl.cdiv(tiles_along, TILES)
    band = tl.program_id(0) // steps
    tile = (tl.program_id(0) % steps) * TILES + tl.arange(0, TILES)[:, None, None, None]
    low_row = tl.arange(0, 32)[None, :, None, None]
    high_row = tl.arange(0, 4)[None, None, :, None]
    col = tl.arange(0, 4)[None, None, None, :]
    place = (band.to(tl.int64) * tiles_along + tile) * 512 + low_row * 16 + high_row * 4 + col
    return band * 128 + high_row * 32 + low_row, tile * 4 + col, place, tile < tiles_along


@triton.jit
def swizzle_scales_kernel(x, out, M, K, stride_m, stride_k, tiles_along, TILES: tl.constexpr):
    """``out``: ``x`` (M, K) in 128x4 tiles, zeros where it has nothing."""
    row, col, place, exists = _places(tiles_along, TILES)
    source = row.to(tl.int64) * stride_m + col.to(tl.int64) * stride_k
    scale = tl.load(x + source, mask=(row < M) & (col < K), other=0)
    tl.store(out + place, scale, mask=exists & (row >= 0))


@triton.jit
def unswizzle_scales_kernel(swizzled, out, M, K, tiles_along, TILES: tl.constexpr):
    """``out`` (M, K) of its 128x4 tiles."""
    row, col, place, exists = _places(tiles_along, TILES)
    scale = tl.load(swizzled + place, mask=exists & (row >= 0))
    tl.store(out + row.to(tl.int64) * K + col, scale, mask=(row < M) & (col < K))


def pad_scales(
    scale: Tensor, row_multiple: int = TILE_ROWS, col_multiple: int = TILE_COLS
) -> Tensor:
    """Pad compact scales (R, C) with zeros to multiples of (row_multiple, col_multiple)."""
    rows, cols = scale.shape
    padded_m = ceil_div(rows, row_multiple) * row_multiple
    padded_k = ceil_div(cols, col_multiple) * col_multiple
    out = scale.new_empty((padded_m, padded_k))
    tile = Tile(32, 128)
    launch(
        pad_scales_kernel,
        tile.programs(padded_m, padded_k),
        matrix_arguments(scale) | {"out": out, "padded_m": padded_m, "padded_k": padded_k},
        tile.constants(),
    )
    return out


def swizzle_scales(scale: Tensor) -> Tensor:
    """Bring scales (R, C), compact or padded, into 128x4 tiles: a flat tensor, padding 0."""
    bands, tiles_along = ceil_div(scale.shape[0], TILE_ROWS), ceil_div(scale.shape[1], TILE_COLS)
    out = scale.new_empty(bands * tiles_along * TILE_ROWS * TILE_COLS)
    launch(
        swizzle_scales_kernel,
        bands * ceil_div(tiles_along, TILES),
        matrix_arguments(scale) | {"out": out, "tiles_along": tiles_along},
        {"TILES": TILES},
    )
    return out


def unswizzle_scales(swizzled: Tensor, rows: int, cols: int) -> Tensor:
    """Undo `swizzle_scales`: the compact scales (rows, cols).

    Raises:
        ArgumentError: The number of scales isn't that of the padded (rows, cols).
    """
    padded_rows, padded_cols = check_swizzled(swizzled, rows, cols)
    out = torch.empty((rows, cols), dtype=swizzled.dtype, device=swizzled.device)
    tiles_along = padded_cols // TILE_COLS
    launch(
        unswizzle_scales_kernel,
        padded_rows // TILE_ROWS * ceil_div(tiles_along, TILES),
        {"swizzled": swizzled, "out": out, "M": rows, "K": cols, "tiles_along": tiles_along},
        {"TILES": TILES},
    )
    return out
