"""Walks a matrix in groups of columns; an incomplete last group is padded with zeros.

Every kernel body sees whole groups only: for the last columns of a ragged row the inputs are copied
to zeroed scratch memory first, and what counts of the results is copied from scratch afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from qrole_kernels.cpu.simd import I8, I64, Kernel, Pointer, Value, choose, lanes, minimum, select

MATRIX = {"rows": I64, "cols": I64, "row_stride": I64}
"""Parameters of every kernel that reads a high-precision matrix; the stride is in elements."""
COMPACT = {"rows": I64, "cols": I64}

_WIDE = 64


@dataclass(frozen=True)
class Stream:
    """One tensor read or written along the rows of the matrix.

    `unit` elements take `unit_nbytes`; `pitch` bytes lie between lines; a line serves `line_rows`
    rows of the matrix.
    """

    base: Pointer
    pitch: Value
    unit: int
    unit_nbytes: int
    line_rows: int = 1

    def nbytes(self, count: Value) -> Value:
        """Room of `count` elements from the start of a group."""
        units = count if self.unit == 1 else (count + (self.unit - 1)) // self.unit
        return units * self.unit_nbytes

    def group_nbytes(self, group: int) -> int:
        """Room of a whole group."""
        return group // self.unit * self.unit_nbytes

    def at(self, row: Value, col: Value) -> Pointer:
        """The place of a group."""
        line = row if self.line_rows == 1 else row // self.line_rows
        return self.base.at(line * self.pitch + self.nbytes(col))


def matrix(k: Kernel, nbytes: int) -> Stream:
    """The high-precision input `src`, `nbytes` per element."""
    return Stream(k.pointer("src"), k["row_stride"] * nbytes, 1, nbytes)


def compact(k: Kernel, name: str, unit: int, unit_nbytes: int, line_rows: int = 1) -> Stream:
    """A contiguous tensor that has `unit_nbytes` for every `unit` elements or part of them."""
    shape = Stream(k.pointer(name), k["cols"], unit, unit_nbytes, line_rows)
    return Stream(shape.base, shape.nbytes(k["cols"]), unit, unit_nbytes, line_rows)


@dataclass(frozen=True)
class Place:
    """Where a group's part of a stream lies: the first line and the distance to the next one."""

    start: Pointer
    pitch: Value

    def line(self, index: Value) -> Pointer:
        """The start of a line."""
        return self.start.at(index * self.pitch)


Body = Callable[[list[Place], list[Place]], None]


@dataclass(frozen=True)
class Walk:
    """How kernels go over the matrix: `group` columns at a time, `height` rows at a time."""

    k: Kernel
    group: int
    inputs: Sequence[Stream]
    outputs: Sequence[Stream]
    height: int = 1
    _padded: dict[int, Place] = field(default_factory=dict)

    def row(self, row: Value, body: Body) -> None:
        """Runs `body(inputs, outputs)` on the groups of the row (or rows) that start at `row`."""
        k = self.k
        with k.range(k["cols"], self.group) as col:
            count = minimum(k["cols"] - col, self.group)
            partial = count < self.group
            with k.when(partial, rare=True):
                for stream in self.inputs:
                    self._fill(stream, row, col, count)
            body(
                [self._place(stream, row, col, partial) for stream in self.inputs],
                [self._place(stream, row, col, partial) for stream in self.outputs],
            )
            with k.when(partial, rare=True):
                for stream in self.outputs:
                    self._drain(stream, row, col, count)

    def lines(self, row: Value) -> Value:
        """Rows of the matrix from `row` on, at most `height`."""
        return minimum(self.k["rows"] - row, self.height)

    def _place(self, stream: Stream, row: Value, col: Value, partial: Value) -> Place:
        padded = self._scratch(stream)
        start = choose(partial, padded.start, stream.at(row, col))
        if self.height == 1:
            return Place(start, padded.pitch)
        pitch = select(partial, padded.pitch, stream.pitch)
        return Place(start, pitch)

    def _scratch(self, stream: Stream) -> Place:
        place = self._padded.get(id(stream))
        if place is None:
            nbytes = -(-stream.group_nbytes(self.group) // _WIDE) * _WIDE
            start = self.k.scratch(self.height * nbytes)
            place = self._padded[id(stream)] = Place(start, self.k.constant(I64, nbytes))
        return place

    def _height(self, stream: Stream, row: Value) -> Value:
        if self.height == 1 or stream.line_rows == self.height:
            return self.k.constant(I64, 1)
        return self.lines(row)

    def _fill(self, stream: Stream, row: Value, col: Value, count: Value) -> None:
        padded = self._scratch(stream)
        given = Place(stream.at(row, col), stream.pitch)
        with self.k.range(self._height(stream, row)) as i:
            _clear(self.k, padded.line(i), padded.pitch)
            _copy(self.k, padded.line(i), given.line(i), stream.nbytes(count))

    def _drain(self, stream: Stream, row: Value, col: Value, count: Value) -> None:
        padded = self._scratch(stream)
        given = Place(stream.at(row, col), stream.pitch)
        with self.k.range(self._height(stream, row)) as i:
            _copy(self.k, given.line(i), padded.line(i), stream.nbytes(count))


def _copy(k: Kernel, destination: Pointer, source: Pointer, nbytes: Value) -> None:
    wide = lanes(I8, _WIDE)
    whole = nbytes & ~(_WIDE - 1)
    with k.range(whole, _WIDE) as i:
        destination.at(i).store(source.at(i).load(wide))
    with k.range(nbytes - whole) as i:
        destination.at(whole + i).store(source.at(whole + i).load(I8))


def _clear(k: Kernel, destination: Pointer, nbytes: Value) -> None:
    with k.range(nbytes, _WIDE) as i:
        destination.at(i).store(k.constant(lanes(I8, _WIDE), 0))
