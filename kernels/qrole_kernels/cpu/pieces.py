"""A matrix in memory, cut into pieces that threads can take."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from qrole_kernels.cpu.threads import run
from qrole_kernels.cpu.transpose import transpose
from qrole_kernels.errors import ArgumentError

PIECE = 1 << 20
"""Elements per piece, about: enough to hide the call, few enough to share out evenly."""
NARROWEST, WIDEST = 32, 128
"""Rows of a transposed matrix that are straightened at a time: whole cache lines of the original,
but not so many that they leave the cache before they are used."""


@dataclass(frozen=True)
class Matrix:
    """`rows` x `cols` elements of `nbytes` each at `address`; strides are in elements.

    Invariant: one of the strides is 1.
    """

    address: int
    nbytes: int
    rows: int
    cols: int
    row_stride: int
    col_stride: int = 1

    def __post_init__(self) -> None:
        """Check the invariant."""
        if 1 not in (self.row_stride, self.col_stride) and self.rows > 1 and self.cols > 1:
            raise ArgumentError(
                f"strides ({self.row_stride}, {self.col_stride})",
                "neighbouring elements in memory along one of the dimensions",
                "Copy the matrix to contiguous memory first.",
            )


@dataclass(frozen=True)
class Piece:
    """Some neighbouring rows, or some neighbouring elements of a matrix without gaps.

    Either way kernels see `rows` x `cols` elements at `address`, contiguous within a row.
    """

    address: int
    rows: int
    cols: int
    row_stride: int
    first_row: int
    first_element: int

    def at(self, base: int, unit: int, unit_nbytes: int, line_rows: int = 1) -> int:
        """Where this piece's part of a compact tensor begins.

        The tensor has `unit_nbytes` for every `unit` elements of a line, and a line for every
        `line_rows` rows.
        """
        line = self.first_row // line_rows * -(-self.cols // unit)
        return base + (line + self.first_element // unit) * unit_nbytes


def for_each_piece(
    work: Callable[[Piece], None],
    matrix: Matrix,
    block_rows: int = 1,
    block_cols: int | None = 1,
    threads: int = 0,
) -> None:
    """Calls `work` on pieces that begin on block borders, in threads.

    Rows without gaps between them that hold whole blocks are taken as one long row. `block_cols`
    None means that rows are blocks: they are never joined, and also visited where they are empty.
    """
    if not matrix.cols and block_cols:
        return
    if matrix.col_stride != 1 and matrix.cols > 1:
        run(lambda strip: work(straightened(matrix, strip)), strips(matrix, block_rows), threads)
    else:
        run(work, list(_cut(matrix, block_rows, block_cols)), threads)


def _cut(matrix: Matrix, block_rows: int, block_cols: int | None) -> Iterator[Piece]:
    seamless = matrix.row_stride == matrix.cols or matrix.rows == 1
    if seamless and block_rows == 1 and block_cols and matrix.cols % block_cols == 0:
        return _along_elements(matrix, block_cols)
    return _along_rows(matrix, block_rows)


def _along_elements(matrix: Matrix, block_cols: int) -> Iterator[Piece]:
    total = matrix.rows * matrix.cols
    step = -(-PIECE // block_cols) * block_cols
    for first in range(0, total, step):
        count = min(step, total - first)
        yield Piece(matrix.address + first * matrix.nbytes, 1, count, count, 0, first)


def _along_rows(matrix: Matrix, block_rows: int) -> Iterator[Piece]:
    step = max(1, PIECE // (max(matrix.cols, 1) * block_rows)) * block_rows
    for first in range(0, matrix.rows, step):
        address = matrix.address + first * matrix.row_stride * matrix.nbytes
        count = min(step, matrix.rows - first)
        yield Piece(address, count, matrix.cols, matrix.row_stride, first, 0)


def strips(matrix: Matrix, block_rows: int) -> list[range]:
    """The rows of a transposed matrix in portions, each a multiple of the block height."""
    unit = max(block_rows, NARROWEST)
    step = max(min(PIECE // matrix.cols, WIDEST) // unit, 1) * unit
    return [range(r, min(r + step, matrix.rows)) for r in range(0, matrix.rows, step)]


_scratch = threading.local()


def straightened(matrix: Matrix, rows: range) -> Piece:
    """A portion of a transposed matrix, copied to scratch memory row by row."""
    count = len(rows)
    address = _scratch_memory(count * matrix.cols * matrix.nbytes)
    first = matrix.address + rows.start * matrix.nbytes
    transpose(matrix.nbytes)(first, address, matrix.cols, count, matrix.col_stride)
    return Piece(address, count, matrix.cols, matrix.cols, rows.start, 0)


def _scratch_memory(nbytes: int) -> int:
    """Memory of the calling thread, overwritten by its next call."""
    held: ctypes.Array[ctypes.c_char] | None = getattr(_scratch, "memory", None)
    if held is None or len(held) < nbytes:
        held = _scratch.memory = (ctypes.c_char * nbytes)()
    return ctypes.addressof(held)
