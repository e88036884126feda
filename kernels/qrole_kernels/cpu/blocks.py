"""Maxima of blocks; NaN is ignored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qrole_kernels.cpu.builder import Kernel
from qrole_kernels.cpu.groups import Place
from qrole_kernels.cpu.simd import I32, Pointer, Value, lanes, maximum
from qrole_kernels.cpu.source import F32_INF, Source

_WORDS = lanes(I32, 16)
_EVEN, _ODD = range(0, 32, 2), range(1, 32, 2)

KeysOf = Callable[[Pointer], Value]


@dataclass(frozen=True)
class Amax:
    """Largest magnitudes in fp32, NaN ignored; `finite` (scalar): no NaN or infinity was met."""

    value: Value
    finite: Value


def without_nan(k: Kernel, source: Source, compute: Callable[[KeysOf], Value]) -> Amax:
    """`compute` from integer keys, where NaN is largest; again with NaN as 0 if one shows up.

    `compute` returns the bits of fp32 numbers.
    """
    found = compute(source.keys)
    bits = k.variable(found)
    with k.when((found > F32_INF).any(), rare=True):
        bits.set(compute(source.keys_without_nan))
    return Amax(bits.get().as_f32(), (found < F32_INF).all())


def block_amax(
    k: Kernel, source: Source, src: Place, steps: int, lines: Value | None, blocks: int = 16
) -> Amax:
    """Maxima of the `blocks` blocks, 16 or 32, that `steps` neighbouring vectors hold.

    The blocks are `lines` rows high; None: one row.
    """

    def compute(keys: KeysOf) -> Value:
        if lines is None:
            columns = [keys(address) for address in source.vectors(src.start, steps)]
        else:
            columns = column_keys(k, source, src, lines, steps, keys)
        if blocks == 16:
            return sixteen_blocks(source, columns)
        half = steps // 2
        first = sixteen_blocks(source, columns[:half])
        return first.take(range(32), sixteen_blocks(source, columns[half:]))

    return without_nan(k, source, compute)


def column_keys(
    k: Kernel, source: Source, src: Place, lines: Value, steps: int, keys: KeysOf
) -> list[Value]:
    """The largest keys down the columns of a tile that is `steps` vectors wide."""
    largest = [k.variable(k.constant(source.key_type, 0)) for _ in range(steps)]
    with k.range(lines) as i:
        addresses = source.vectors(src.line(i), steps)
        for variable, address in zip(largest, addresses, strict=True):
            variable.set(maximum(variable.get(), keys(address)))
    return [variable.get() for variable in largest]


def one_block(source: Source, steps: Sequence[Value]) -> Value:
    """The maximum of everything, as fp32 bits (scalar)."""
    level = list(steps)
    while len(level) > 1:
        level = [maximum(*level[i : i + 2]) for i in range(0, len(level), 2)]
    return source.join(level[0]).largest_lane()


def sixteen_blocks(source: Source, steps: Sequence[Value]) -> Value:
    """The maxima of 16 blocks in order, as fp32 bits: 8 steps hold blocks of 16, 16 steps of 32.

    Neighbouring lanes are joined until 16 are left.
    """
    level = [keys.as_type(_WORDS) for keys in steps]
    while len(level) > 1:
        level = [_join_neighbours(source, *level[i : i + 2]) for i in range(0, len(level), 2)]
    return source.join(level[0].as_type(source.key_type))


def _join_neighbours(source: Source, first: Value, second: Value) -> Value:
    even, odd = first.take(_EVEN, second), first.take(_ODD, second)
    larger = maximum(even.as_type(source.key_type), odd.as_type(source.key_type))
    return larger.as_type(_WORDS)
