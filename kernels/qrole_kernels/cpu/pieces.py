"""A matrix in memory, cut into pieces that threads can take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

PIECE = 1 << 20
"""Elements per piece, about: large enough to hide the call, small enough to share out evenly."""


@dataclass(frozen=True)
class Matrix:
    """`rows` x `cols` elements at `address`; the stride between rows is in elements."""

    address: int
    nbytes: int
    rows: int
    cols: int
    row_stride: int


@dataclass(frozen=True)
class Piece:
    """Some neighbouring rows, or some neighbouring elements of a matrix without gaps.

    Either way kernels see `rows` x `cols` elements at `address`.
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


def split(matrix: Matrix, block_rows: int = 1, block_cols: int = 1) -> list[Piece]:
    """Pieces that begin on block borders; empty for an empty matrix.

    Rows that follow each other without gap and hold whole blocks are taken as one long row.
    """
    if not matrix.rows or not matrix.cols:
        return []
    seamless = matrix.row_stride == matrix.cols and matrix.cols % block_cols == 0
    cut = _along_elements if seamless and block_rows == 1 else _along_rows
    return list(cut(matrix, block_rows, block_cols))


def _along_elements(matrix: Matrix, _: int, block_cols: int) -> Iterator[Piece]:
    total = matrix.rows * matrix.cols
    step = -(-PIECE // block_cols) * block_cols
    for first in range(0, total, step):
        count = min(step, total - first)
        yield Piece(matrix.address + first * matrix.nbytes, 1, count, count, 0, first)


def _along_rows(matrix: Matrix, block_rows: int, _: int) -> Iterator[Piece]:
    step = max(1, PIECE // (matrix.cols * block_rows)) * block_rows
    for first in range(0, matrix.rows, step):
        address = matrix.address + first * matrix.row_stride * matrix.nbytes
        count = min(step, matrix.rows - first)
        yield Piece(address, count, matrix.cols, matrix.row_stride, first, 0)
