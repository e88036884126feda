"""Maxima of blocks; NaN is ignored (spec: section 0)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qrole_kernels.cpu.groups import Place
from qrole_kernels.cpu.simd import I32, Kernel, Pointer, Value, lanes, maximum
from qrole_kernels.cpu.source import F32_INF, VECTOR, Source

_WORDS = lanes(I32, 16)
_EVEN, _ODD = range(0, 32, 2), range(1, 32, 2)

KeysOf = Callable[[Pointer], Value]


def without_nan(k: Kernel, source: Source, compute: Callable[[KeysOf], Value]) -> Value:
    """`compute` from integer keys, where NaN is largest; again with NaN as 0 if one shows up.

    `compute` returns fp32 bits (a scalar or lanes); so does this.
    """
    bits = k.variable(compute(source.keys))
    found = bits.get() > F32_INF
    with k.when(found if found.count == 1 else found.any(), rare=True):
        bits.set(compute(source.keys_without_nan))
    return bits.get()


def vectors(source: Source, start: Pointer, count: int) -> list[Pointer]:
    """The addresses of `count` neighbouring steps of 32 elements."""
    return [start.at(i * VECTOR * source.nbytes) for i in range(count)]


def row_block_amax(k: Kernel, source: Source, src: Place, steps: int) -> Value:
    """Maxima of the 16 blocks that lie in `steps` neighbouring vectors of one row (16 x fp32)."""
    addresses = vectors(source, src.start, steps)

    def compute(keys: KeysOf) -> Value:
        return sixteen_blocks(source, [keys(address) for address in addresses])

    return without_nan(k, source, compute).as_f32()


def tile_block_amax(k: Kernel, source: Source, src: Place, lines: Value, steps: int) -> Value:
    """The same over the height of a tile."""

    def compute(keys: KeysOf) -> Value:
        return sixteen_blocks(source, column_keys(k, source, src, lines, steps, keys))

    return without_nan(k, source, compute).as_f32()


def column_keys(
    k: Kernel, source: Source, src: Place, lines: Value, steps: int, keys: KeysOf
) -> list[Value]:
    """The largest keys down the columns of a tile that is `steps` vectors wide."""
    zero = k.constant(source.key_type, 0)
    largest = [k.variable(zero) for _ in range(steps)]
    with k.range(lines) as i:
        addresses = vectors(source, src.line(i), steps)
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
