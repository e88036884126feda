"""Largest magnitude of a matrix, or of each of its rows."""

from __future__ import annotations

from qrole_kernels.cpu.blocks import KeysOf, one_block, vectors, without_nan
from qrole_kernels.cpu.groups import MATRIX, Place, Walk, matrix
from qrole_kernels.cpu.jit import kernel
from qrole_kernels.cpu.simd import F32, PTR, Kernel, Value, maximum
from qrole_kernels.cpu.source import SOURCES, VECTOR, Source

STEPS = 4
GROUP = STEPS * VECTOR


@kernel(src=PTR, out=PTR, **MATRIX)
def amax(k: Kernel, dtype: str) -> None:
    """One fp32 for the matrix."""
    source = SOURCES[dtype]
    largest = k.variable(k.constant(F32, 0.0))
    with k.range(k["rows"]) as row:
        largest.set(maximum(row_amax(k, source, row), largest.get()))
    k.pointer("out").store(largest.get())


@kernel(src=PTR, out=PTR, **MATRIX)
def amax_rows(k: Kernel, dtype: str) -> None:
    """One fp32 per row."""
    with k.range(k["rows"]) as row:
        k.pointer("out").at(row * 4).store(row_amax(k, SOURCES[dtype], row))


def row_amax(k: Kernel, source: Source, row: Value) -> Value:
    """The largest magnitude of a row (fp32 scalar)."""

    def compute(keys: KeysOf) -> Value:
        largest = [k.variable(k.constant(source.key_type, 0)) for _ in range(STEPS)]

        def body(inputs: list[Place], _: list[Place]) -> None:
            addresses = vectors(source, inputs[0].start, STEPS)
            for variable, address in zip(largest, addresses, strict=True):
                variable.set(maximum(variable.get(), keys(address)))

        Walk(k, GROUP, [matrix(k, source.nbytes)], []).row(row, body)
        return one_block(source, [variable.get() for variable in largest])

    return without_nan(k, source, compute).as_f32()
