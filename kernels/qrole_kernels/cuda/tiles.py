"""Tiles of a matrix: where a program works, what it loads and stores, maxima of its blocks.

Shape suffixes: R, C are the rows and columns of a tile; a tile cut into blocks is
(R / BR, BR, C / BC, BC).
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from qrole_kernels.reference.blocks import ceil_div


@dataclass(frozen=True)
class Tile:
    """Extent of the part of a matrix that one program works on; both are powers of two."""

    rows: int
    cols: int

    def __post_init__(self) -> None:
        """Check the invariant."""
        assert self.rows.bit_count() == self.cols.bit_count() == 1

    def programs(self, rows: int, cols: int) -> int:
        """Number of tiles that cover a (rows, cols) matrix."""
        return ceil_div(rows, self.rows) * ceil_div(cols, self.cols)

    def constants(self) -> dict[str, int]:
        """The tile as constexprs of a kernel."""
        return {"TILE_ROWS": self.rows, "TILE_COLS": self.cols}


def column_major(x: Tensor) -> bool:
    """Whether neighbours in memory are neighbours in a column, as in a transposed view."""
    return x.stride(0) == 1 and x.stride(1) != 1


def has_aligned_rows(x: Tensor) -> bool:
    """Whether the compiler sees that 128-bit loads along the rows are possible."""
    # Divisibility by 16 of an argument is all that triton specializes for.
    return x.stride(1) == 1 and x.stride(0) % 16 == 0 and x.data_ptr() % 16 == 0


def vector_of(x: Tensor) -> int:
    """Neighbours of a row that one load takes: 128 bits of them, or 1."""
    return 16 // x.element_size() if has_aligned_rows(x) else 1


def matrix_arguments(x: Tensor) -> dict[str, Tensor | int]:
    """A matrix (M, K) of any strides as kernel arguments."""
    rows, cols = x.shape
    return {"x": x, "M": rows, "K": cols, "stride_m": x.stride(0), "stride_k": x.stride(1)}


@triton.jit
def tile_origin(K, TILE_ROWS: tl.constexpr, TILE_COLS: tl.constexpr):
    """First row and column of this program's tile; programs walk along the rows of a matrix."""
    tiles_along = tl.cdiv(K, TILE_COLS)
    program = tl.program_id(0)
    return (program // tiles_along) * TILE_ROWS, (program % tiles_along) * TILE_COLS


@triton.jit
def tile_mask(row0, col0, M, K, TILE_ROWS: tl.constexpr, TILE_COLS: tl.constexpr):
    """(R, C) bool: which elements of the tile lie inside the (M, K) matrix."""
    rows = row0 + tl.arange(0, TILE_ROWS)
    cols = col0 + tl.arange(0, TILE_COLS)
    return (rows[:, None] < M) & (cols[None, :] < K)


@triton.jit
def tile_offsets(row0, col0, stride_m, stride_k, TILE_ROWS: tl.constexpr, TILE_COLS: tl.constexpr):
    """(R, C) element offsets of the tile, int64: a matrix may hold more than 2^31 elements."""
    rows = (row0 + tl.arange(0, TILE_ROWS)).to(tl.int64)
    cols = (col0 + tl.arange(0, TILE_COLS)).to(tl.int64)
    return rows[:, None] * stride_m + cols[None, :] * stride_k


@triton.jit
def load_tile(
    x, row0, col0, M, K, stride_m, stride_k, TILE_ROWS: tl.constexpr, TILE_COLS: tl.constexpr
):
    """(R, C) tile of ``x`` in its own dtype; missing elements are zero."""
    offsets = tile_offsets(row0, col0, stride_m, stride_k, TILE_ROWS, TILE_COLS)
    mask = tile_mask(row0, col0, M, K, TILE_ROWS, TILE_COLS)
    return tl.load(x + offsets, mask=mask, other=0)


@triton.jit
def load_runs(
    x,
    row0,
    col0,
    M,
    K,
    stride_m,
    stride_k,
    RUN: tl.constexpr,
    VECTOR: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLS: tl.constexpr,
):
    """`load_tile` with every run of RUN neighbours of a row in the registers of one thread.

    VECTOR: neighbours of a row that one load instruction takes.
    """
    # Threads are spread over the trailing dimensions first, so that the leading one, the loads
    # that make up a run, stays with a thread.
    PIECES: tl.constexpr = RUN // VECTOR
    RUNS: tl.constexpr = TILE_COLS // RUN
    piece = tl.arange(0, PIECES)[:, None, None, None] * VECTOR
    row = row0 + tl.arange(0, TILE_ROWS)[None, :, None, None]
    run = col0 + tl.arange(0, RUNS)[None, None, :, None] * RUN
    col = run + piece + tl.arange(0, VECTOR)[None, None, None, :]
    offsets = row.to(tl.int64) * stride_m + col.to(tl.int64) * stride_k
    tile = tl.load(x + offsets, mask=(row < M) & (col < K), other=0)
    return tl.reshape(tl.permute(tile, (1, 2, 0, 3)), (TILE_ROWS, TILE_COLS))


@triton.jit
def load_amax(amax, row0, M, PER_ROW: tl.constexpr, ROWS: tl.constexpr):
    """fp32 (R,) amax of the rows of a tile, or (1,) of the tensor."""
    if PER_ROW:
        rows = row0 + tl.arange(0, ROWS)
        largest = tl.load(amax + rows, mask=rows < M, other=0.0)
    else:
        largest = tl.load(amax + tl.arange(0, 1))
    return largest


@triton.jit
def widen(value):
    """bf16, fp16 or fp32 -> fp32, exact; bf16 by its bits, which the interpreter needs."""
    if value.dtype == tl.bfloat16:
        bits = value.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        wide = bits.to(tl.float32, bitcast=True)
    else:
        wide = value.to(tl.float32)
    return wide


@triton.jit
def store_tile(out, tile, row0, col0, M, K):
    """Store an (R, C) tile into the contiguous (M, K) matrix ``out``."""
    ROWS: tl.constexpr = tile.shape[0]
    COLS: tl.constexpr = tile.shape[1]
    offsets = tile_offsets(row0, col0, K, 1, ROWS, COLS)
    tl.store(out + offsets, tile, mask=tile_mask(row0, col0, M, K, ROWS, COLS))


@triton.jit
def as_blocks(tile, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """(R, C) -> (R/BR, BR, C/BC, BC)."""
    ROWS: tl.constexpr = tile.shape[0]
    COLS: tl.constexpr = tile.shape[1]
    return tl.reshape(tile, (ROWS // BLOCK_ROWS, BLOCK_ROWS, COLS // BLOCK_COLS, BLOCK_COLS))


@triton.jit
def from_blocks(blocks):
    """(R/BR, BR, C/BC, BC) -> (R, C)."""
    ROWS: tl.constexpr = blocks.shape[0] * blocks.shape[1]
    COLS: tl.constexpr = blocks.shape[2] * blocks.shape[3]
    return tl.reshape(blocks, (ROWS, COLS))


@triton.jit
def over_block(value):
    """(R/BR, C/BC) -> (R/BR, 1, C/BC, 1), which broadcasts over the elements of blocks."""
    return value[:, None, :, None]


@triton.jit
def block_amax(blocks):
    """(R/BR, BR, C/BC, BC) -> (R/BR, C/BC) largest magnitudes; NaN ignored."""
    largest = tl.max(tl.max(tl.abs(blocks), axis=3), axis=1)
    # The maximum takes the number over the NaN, so that only a block of NaN alone ends as NaN.
    return tl.where(largest == largest, largest, 0.0)


@triton.jit
def split_pairs(tile):
    """(R, C) -> two (R, C/2): the elements of even and of odd column."""
    ROWS: tl.constexpr = tile.shape[0]
    COLS: tl.constexpr = tile.shape[1]
    return tl.split(tl.reshape(tile, (ROWS, COLS // 2, 2)))
