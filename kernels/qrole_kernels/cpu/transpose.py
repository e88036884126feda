"""The transpose of a matrix of 2- or 4-byte elements, tile by tile in registers."""

from __future__ import annotations

from qrole_kernels.cpu.builder import Kernel
from qrole_kernels.cpu.groups import MATRIX, Place, copy_bytes
from qrole_kernels.cpu.jit import kernel
from qrole_kernels.cpu.simd import I16, I32, I64, PTR, Value, lanes, minimum
from qrole_kernels.cpu.threads import run

ROW_NBYTES = 64
"""A tile is square, and a row of it fills one register."""
_STRIP = 128
"""Columns that one thread turns into rows at a time."""


@kernel(src=PTR, out=PTR, **MATRIX)
def transpose(k: Kernel, nbytes: int) -> None:
    """Writes `src` (rows, cols) to `out` (cols, rows) without gaps."""
    side = ROW_NBYTES // nbytes
    row_type = lanes({2: I16, 4: I32}[nbytes], side)
    pitch = k.constant(I64, ROW_NBYTES)
    padded, result = (Place(k.scratch(side * ROW_NBYTES), pitch) for _ in range(2))

    with k.range(k["rows"], side) as row, k.range(k["cols"], side) as col:
        given = _corner(k, "src", row, col, k["row_stride"], nbytes)
        wanted = _corner(k, "out", col, row, k["rows"], nbytes)
        height, width = minimum(k["rows"] - row, side), minimum(k["cols"] - col, side)
        whole = (height.equals(side)) & (width.equals(side))
        source, destination = _one_of(k, whole, given, padded), _one_of(k, whole, wanted, result)
        with k.unless(whole), k.range(height) as i:
            copy_bytes(k, padded.line(i), given.line(i), width * nbytes)
        for step in range(side):
            given.line(k.constant(I64, step + side)).prefetch()
        tile = [source.line(k.constant(I64, step)).load(row_type) for step in range(side)]
        for step, line in enumerate(transposed(tile)):
            destination.line(k.constant(I64, step)).store(line)
        with k.unless(whole), k.range(width) as i:
            copy_bytes(k, wanted.line(i), result.line(i), height * nbytes)


def _corner(k: Kernel, name: str, row: Value, col: Value, stride: Value, nbytes: int) -> Place:
    pitch = stride * nbytes
    return Place(k.pointer(name).at(row * pitch + col * nbytes), pitch)


def _one_of(k: Kernel, whole: Value, direct: Place, scratch: Place) -> Place:
    start, pitch = k.variable(direct.start), k.variable(direct.pitch)
    with k.unless(whole):
        start.set(scratch.start)
        pitch.set(scratch.pitch)
    return Place(start.get(), pitch.get())


def transposed(tile: list[Value]) -> list[Value]:
    """The columns of a square tile that is given by its rows.

    For each bit of the index, the two quarters off the diagonal change places.
    """
    side, distance = len(tile), 1
    rows = list(tile)
    while distance < side:
        upper = [i + side - distance if i & distance else i for i in range(side)]
        lower = [i + side if i & distance else i + distance for i in range(side)]
        for i in range(side):
            if not i & distance:
                a, b = rows[i], rows[i + distance]
                rows[i], rows[i + distance] = a.take(upper, b), a.take(lower, b)
        distance *= 2
    return rows


def host_transpose(
    src: int, nbytes: int, rows: int, cols: int, row_stride: int, out: int, *, threads: int = 0
) -> None:
    """Writes the transpose (cols, rows) of a matrix, without gaps, to `out`.

    Args:
        src: Address of (rows, cols) elements.
        nbytes: Of an element, 2 or 4.
        rows: Rows of the source.
        cols: Its columns.
        row_stride: Elements from one of its rows to the next.
        out: Address of cols * rows elements.
        threads: Number of threads; 0 is the default number.
    """
    compiled = transpose(nbytes)

    def work(first: int) -> None:
        count = min(cols - first, _STRIP)
        place = out + first * rows * nbytes
        compiled(src + first * nbytes, place, rows, count, row_stride)

    run(work, range(0, cols, _STRIP), threads)
