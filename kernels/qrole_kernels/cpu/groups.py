"""Walks a matrix in groups of columns; an incomplete last group is padded with zeros.

Kernels see whole groups only: for the last columns of a ragged row the inputs are copied to zeroed
scratch memory first, and what counts of the results is copied from scratch afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from qrole_kernels.cpu.builder import Kernel
from qrole_kernels.cpu.simd import I8, I64, Pointer, Value, lanes, minimum

MATRIX = {"rows": I64, "cols": I64, "row_stride": I64}
"""Parameters of every kernel that reads a high-precision matrix; the stride is in elements."""
COMPACT = {"rows": I64, "cols": I64}
"""Parameters of every kernel whose tensors are all contiguous."""

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
        return _units(count, self.unit) * self.unit_nbytes

    def at(self, row: Value, col: Value) -> Pointer:
        """The place of a group."""
        line = row if self.line_rows == 1 else row // self.line_rows
        return self.base.at(line * self.pitch + self.nbytes(col))


def _units(count: Value, unit: int) -> Value:
    return count if unit == 1 else (count + (unit - 1)) // unit


def matrix(k: Kernel, nbytes: int) -> Stream:
    """The high-precision input `src`, `nbytes` per element."""
    return Stream(k.pointer("src"), k["row_stride"] * nbytes, 1, nbytes)


def compact(k: Kernel, name: str, unit: int, unit_nbytes: int, line_rows: int = 1) -> Stream:
    """A contiguous tensor that has `unit_nbytes` for every `unit` elements or part of them."""
    pitch = _units(k["cols"], unit) * unit_nbytes
    return Stream(k.pointer(name), pitch, unit, unit_nbytes, line_rows)


@dataclass(frozen=True)
class Place:
    """Where a group's part of a stream lies: its first line and the distance to the next one."""

    start: Pointer
    pitch: Value

    def line(self, index: Value) -> Pointer:
        """The start of a line."""
        return self.start.at(index * self.pitch)


class Walk:
    """How a kernel goes over the matrix: `group` columns at a time, `height` rows at a time."""

    def __init__(
        self,
        k: Kernel,
        group: int,
        inputs: Sequence[Stream],
        outputs: Sequence[Stream],
        height: int = 1,
    ) -> None:
        self.k = k
        self.group = group
        self.height = height
        self._inputs = [(stream, self._scratch(stream)) for stream in inputs]
        self._outputs = [(stream, self._scratch(stream)) for stream in outputs]

    def _scratch(self, stream: Stream) -> Place:
        nbytes = self.group // stream.unit * stream.unit_nbytes
        nbytes = -(-nbytes // _WIDE) * _WIDE
        return Place(self.k.scratch(self.height * nbytes), self.k.constant(I64, nbytes))

    @contextmanager
    def rows(self) -> Iterator[Value]:
        """A loop over the rows, `height` at a time."""
        with self.k.range(self.k["rows"], self.height) as row:
            yield row

    def lines(self, row: Value) -> Value:
        """Rows that are left from `row` on, at most `height`."""
        return minimum(self.k["rows"] - row, self.height)

    @contextmanager
    def groups(self, row: Value) -> Iterator[list[Place]]:
        """A loop over the groups of the row (or rows) that begin at `row`: inputs, then outputs."""
        k, every = self.k, [*self._inputs, *self._outputs]
        with k.range(k["cols"], self.group) as col:
            count = minimum(k["cols"] - col, self.group)
            partial = count < self.group
            given = [Place(stream.at(row, col), stream.pitch) for stream, _ in every]
            used = [(k.variable(place.start), k.variable(place.pitch)) for place in given]
            with k.when(partial, rare=True):
                for (stream, padded), place in zip(self._inputs, given, strict=False):
                    with k.range(self._lines(stream, row)) as i:
                        _clear(k, padded.line(i), padded.pitch)
                        copy_bytes(k, padded.line(i), place.line(i), stream.nbytes(count))
                for (start, pitch), (_, padded) in zip(used, every, strict=True):
                    start.set(padded.start)
                    pitch.set(padded.pitch)
            yield [Place(start.get(), pitch.get()) for start, pitch in used]
            with k.when(partial, rare=True):
                for (stream, padded), place in zip(
                    self._outputs, given[len(self._inputs) :], strict=True
                ):
                    with k.range(self._lines(stream, row)) as i:
                        copy_bytes(k, place.line(i), padded.line(i), stream.nbytes(count))

    def _lines(self, stream: Stream, row: Value) -> Value | int:
        return 1 if self.height in (1, stream.line_rows) else self.lines(row)


def copy_bytes(k: Kernel, destination: Pointer, source: Pointer, nbytes: Value) -> None:
    """Copies memory, wide steps first."""
    wide = lanes(I8, _WIDE)
    whole = nbytes & -_WIDE
    with k.range(whole, _WIDE) as i:
        destination.at(i).store(source.at(i).load(wide))
    with k.range(nbytes - whole) as i:
        destination.at(whole + i).store(source.at(whole + i).load(I8))


def _clear(k: Kernel, destination: Pointer, nbytes: Value) -> None:
    with k.range(nbytes, _WIDE) as i:
        destination.at(i).store(k.constant(lanes(I8, _WIDE), 0))
