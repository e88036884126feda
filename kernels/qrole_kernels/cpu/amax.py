"""Largest magnitude of a matrix, or of each of its rows."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

from qrole_kernels.cpu.arguments import high_precision
from qrole_kernels.cpu.blocks import KeysOf, one_block, without_nan
from qrole_kernels.cpu.builder import Kernel
from qrole_kernels.cpu.groups import MATRIX, Walk, matrix
from qrole_kernels.cpu.jit import kernel
from qrole_kernels.cpu.pieces import Piece, for_each_piece
from qrole_kernels.cpu.simd import F32, I32, PTR, Value, maximum
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
def amax_or_nan(k: Kernel, dtype: str) -> None:
    """One fp32 for the matrix, NaN where it holds one."""
    source = SOURCES[dtype]
    largest = k.variable(k.constant(I32, 0))
    with k.range(k["rows"]) as row:
        largest.set(maximum(row_bits(k, source, row)(source.keys), largest.get()))
    k.pointer("out").store(largest.get().as_f32())


@kernel(src=PTR, out=PTR, **MATRIX)
def amax_rows(k: Kernel, dtype: str) -> None:
    """One fp32 per row."""
    with k.range(k["rows"]) as row:
        k.pointer("out").at(row * 4).store(row_amax(k, SOURCES[dtype], row))


def row_amax(k: Kernel, source: Source, row: Value) -> Value:
    """The largest magnitude of a row (fp32 scalar)."""
    return without_nan(k, source, row_bits(k, source, row)).value


def row_bits(k: Kernel, source: Source, row: Value) -> Callable[[KeysOf], Value]:
    """The largest magnitude of a row from integer keys, as fp32 bits (scalar)."""
    walk = Walk(k, GROUP, [matrix(k, source.nbytes)], [])

    def compute(keys: KeysOf) -> Value:
        largest = [k.variable(k.constant(source.key_type, 0)) for _ in range(STEPS)]
        with walk.groups(row) as (src,):
            for variable, address in zip(largest, source.vectors(src.start, STEPS), strict=True):
                source.prefetch(address.at(AHEAD))
                variable.set(maximum(variable.get(), keys(address)))
        return one_block(source, [variable.get() for variable in largest])

    return compute


def host_amax(
    src: int,
    dtype: str,
    rows: int,
    cols: int,
    row_stride: int,
    *,
    col_stride: int = 1,
    keep_nan: bool = False,
    threads: int = 0,
) -> float:
    """The largest magnitude; an empty matrix has 0. NaN is ignored, or the result if it is kept."""
    x = high_precision(src, dtype, rows, cols, row_stride, col_stride)
    kernel = (amax_or_nan if keep_nan else amax)(dtype)
    found = [0.0]

    def work(p: Piece) -> None:
        largest = ctypes.c_float()
        kernel(p.address, ctypes.addressof(largest), p.rows, p.cols, p.row_stride)
        found.append(largest.value)

    for_each_piece(work, x, threads=threads)
    return math.nan if any(map(math.isnan, found)) else max(found)


def host_amax_rows(
    src: int,
    dtype: str,
    rows: int,
    cols: int,
    row_stride: int,
    out: int,
    *,
    col_stride: int = 1,
    threads: int = 0,
) -> None:
    """The largest magnitude of each row: `out` fp32 (rows,)."""
    x = high_precision(src, dtype, rows, cols, row_stride, col_stride)
    kernel = amax_rows(dtype)

    def work(p: Piece) -> None:
        kernel(p.address, out + 4 * p.first_row, p.rows, p.cols, p.row_stride)

    for_each_piece(work, x, block_cols=None, threads=threads)
