"""Largest magnitude of a matrix or of its rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from qrole_kernels.cuda.launch import launch
from qrole_kernels.cuda.rounding import bits_of
from qrole_kernels.cuda.tiles import (
    Tile,
    column_major,
    load_tile,
    matrix_arguments,
    tile_origin,
    widen,
)
from qrole_kernels.reference.arguments import check_matrix

TILES = 4
"""Neighbouring tiles that one program reduces before its one atomic operation."""


@triton.jit
def amax_kernel(
    x,
    out_bits,
    M,
    K,
    stride_m,
    stride_k,
    PER_ROW: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Raise ``out_bits``, int32 bits of one fp32 or of one per row, to the amax of ``x``."""
    row0, col0 = tile_origin(K, TILE_ROWS, TILE_COLS * TILES)
    largest = tl.zeros((TILE_ROWS, TILE_COLS), tl.float32)
    for i in tl.static_range(TILES):
        col = col0 + i * TILE_COLS
        tile = load_tile(x, row0, col, M, K, stride_m, stride_k, TILE_ROWS, TILE_COLS)
        largest = tl.maximum(largest, tl.abs(widen(tile)))
    # Bits of non-negative floats are ordered like the floats.
    if PER_ROW:
        rows = row0 + tl.arange(0, TILE_ROWS)
        bits = bits_of(tl.max(largest, axis=1)).to(tl.int32, bitcast=True)
        tl.atomic_max(out_bits + rows, bits, mask=rows < M, sem="relaxed")
    else:
        bits = bits_of(tl.max(largest)).to(tl.int32, bitcast=True)
        tl.atomic_max(out_bits, bits, sem="relaxed")


def _reduce(x: Tensor, out: Tensor, per_row: bool) -> Tensor:
    tile = Tile(128, 16) if column_major(x) else Tile(16, 128)
    launch(
        amax_kernel,
        Tile(tile.rows, tile.cols * TILES).programs(*x.shape),
        matrix_arguments(x) | {"out_bits": out.view(torch.int32)},
        tile.constants() | {"PER_ROW": per_row, "TILES": TILES},
    )
    return out


def amax(x: Tensor) -> Tensor:
    """Largest |x| of a matrix (M, K) as an fp32 scalar; NaN is ignored, an empty matrix has 0."""
    check_matrix(x)
    out = torch.zeros((), dtype=torch.float32, device=x.device)
    return _reduce(x.t() if column_major(x) else x, out, per_row=False)


def amax_rows(x: Tensor) -> Tensor:
    """Largest |x| of each row of a matrix (M, K), fp32 (M,)."""
    check_matrix(x)
    out = torch.zeros(x.shape[0], dtype=torch.float32, device=x.device)
    return _reduce(x, out, per_row=True)
