"""Largest magnitude of a matrix, or of each of its rows."""

from __future__ import annotations

from qrole_kernels.cpu.blocks import KeysOf, one_block, without_nan
from qrole_kernels.cpu.groups import MATRIX, Walk, matrix
from qrole_kernels.cpu.jit import kernel
from qrole_kernels.cpu.simd import F32, PTR, Kernel, Value, maximum
from qrole_kernels.cpu.source import AHEAD, SOURCES, VECTOR, Source

STEPS = 4
GROUP = STEPS * VECTOR


@kernel(src=PTR, out=PTR, **MATRIX)
def amax(k: Kernel, dtype: str) -> None:
    """One fp32 for the matrix."""
    largest = k.variable(k.constant(F32, 0.0))
    with k.range(k["rows"]) as row:
        largest.set(maximum(row_amax(k, SOURCES[dtype], row), largest.get()))
    k.pointer("out").store(largest.get())


@kernel(src=PTR, out=PTR, **MATRIX)
def amax_rows(k: Kernel, dtype: str) -> None:
    """One fp32 per row."""
    with k.range(k["rows"]) as row:
        k.pointer("out").at(row * 4).store(row_amax(k, SOURCES[dtype], row))


def row_amax(k: Kernel, source: Source, row: Value) -> Value:
    """The largest magnitude of a row (fp32 scalar)."""
    walk = Walk(k, GROUP, [matrix(k, source.nbytes)], [])

    def compute(keys: KeysOf) -> Value:
        largest = [k.variable(k.constant(source.key_type, 0)) for _ in range(STEPS)]
        with walk.groups(row) as (src,):
            for variable, address in zip(largest, source.vectors(src.start, STEPS), strict=True):
                source.prefetch(address.at(AHEAD))
                variable.set(maximum(variable.get(), keys(address)))
        return one_block(source, [variable.get() for variable in largest])

    return without_nan(k, source, compute)
