"""How two arrays differ, and what the first of them holds, in one pass over both."""

from __future__ import annotations

from qrole_kernels.cpu.builder import Kernel, Variable
from qrole_kernels.cpu.jit import kernel
from qrole_kernels.cpu.simd import F32, I32, I64, PTR, Value, lanes, maximum, minimum, select
from qrole_kernels.cpu.source import AHEAD
from qrole_kernels.cpu.threads import run

LANES = 16
STEP = 64
"""Elements per step; arrays have to hold a multiple of it."""
CHUNK = 32768
"""Elements per row of results: few enough for sums in fp32."""
STATISTICS = ("a_sq", "b_sq", "error_sq", "max_error", "max_a", "smallest_a", "nonzero_a")
"""What a row of results holds, each in 16 lanes that are still to be added up or compared:
sums of squares (fp32); largest magnitudes and the smallest that is not zero, as integers that are
the bits of an fp32 number, NaN being larger than infinity; and a number of elements (int32)."""

_LARGEST = 0x7FFFFFFF
_VECTOR = lanes(F32, LANES)
_WORDS = lanes(I32, LANES)


@kernel(a=PTR, b=PTR, out=PTR, count=I64)
def difference(k: Kernel) -> None:
    """A row of results per chunk of `count` fp32 elements."""
    row = k.variable(k.pointer("out"))
    with k.range(k["count"], CHUNK) as first:
        a, b = k.pointer("a").at(first * 4), k.pointer("b").at(first * 4)
        left = k["count"] - first
        sums = [_four(k, _VECTOR) for _ in range(3)]
        errors, magnitudes, smallest, nonzero = (
            k.variable(k.constant(_WORDS, start)) for start in (0, 0, _LARGEST, 0)
        )
        with k.range(minimum(left, CHUNK), STEP) as i:
            for part in range(STEP // LANES):
                offset = i * 4 + part * LANES * 4
                a.at(offset + AHEAD).prefetch()
                b.at(offset + AHEAD).prefetch()
                x, y = a.at(offset).load(_VECTOR), b.at(offset).load(_VECTOR)
                error = y - x
                for held, value in zip(sums, (x, y, error), strict=True):
                    held[part].set(held[part].get() + value * value)
                key = x.magnitude().bits()
                is_zero = key.equals(0)
                errors.set(maximum(error.magnitude().bits(), errors.get()))
                magnitudes.set(maximum(key, magnitudes.get()))
                smallest.set(minimum(select(is_zero, _LARGEST, key), smallest.get()))
                nonzero.set(nonzero.get() + select(is_zero, 0, key.like(1)))
        found = [_added(four) for four in sums]
        found += [held.get() for held in (errors, magnitudes, smallest, nonzero)]
        for place, value in enumerate(found):
            row.get().at(place * LANES * 4).store(value)
        row.set(row.get().at(len(found) * LANES * 4))


def _four(k: Kernel, kind: object) -> list[Variable[Value]]:
    """Sums that do not wait for each other."""
    return [k.variable(k.constant(kind, 0)) for _ in range(STEP // LANES)]


def _added(four: list[Variable[Value]]) -> Value:
    first, second, third, fourth = (held.get() for held in four)
    return (first + second) + (third + fourth)


def host_difference(a: int, b: int, count: int, out: int, *, threads: int = 0) -> None:
    """Fills `out`, fp32 or int32 (ceil(count / CHUNK), len(STATISTICS), LANES).

    Args:
        a: Address of fp32 elements.
        b: Address of as many.
        count: Their number, a multiple of STEP.
        out: Address of the results.
        threads: Number of threads; 0 is the default number.
    """
    compiled = difference()
    chunks = -(-count // CHUNK)
    step = 32
    row_nbytes = len(STATISTICS) * LANES * 4

    def work(first: int) -> None:
        start = first * CHUNK
        held = min(count - start, step * CHUNK)
        compiled(a + start * 4, b + start * 4, out + first * row_nbytes, held)

    run(work, range(0, chunks, step), threads)
