"""FP8 with one fp32 scale per tensor or per row."""

from __future__ import annotations

import math

from qrole_kernels.cpu.amax import row_amax
from qrole_kernels.cpu.arguments import contiguous, high_precision, value_nbytes
from qrole_kernels.cpu.builder import Kernel
from qrole_kernels.cpu.groups import COMPACT, MATRIX, Walk, compact, matrix
from qrole_kernels.cpu.jit import kernel
from qrole_kernels.cpu.pieces import Piece, for_each_piece
from qrole_kernels.cpu.rounding import FLOAT32_MAX, fp8_codes, fp8_codes_any
from qrole_kernels.cpu.simd import F32, PTR, Value, select
from qrole_kernels.cpu.sink import SINKS, decode_fp8_pair
from qrole_kernels.cpu.source import AHEAD, SOURCES, VECTOR, Source
from qrole_kernels.formats import ElementFormat, fp8_format

STEPS = 4
GROUP = STEPS * VECTOR


@kernel(src=PTR, out=PTR, scale=F32, **MATRIX)
def quantize_fp8(k: Kernel, dtype: str, element: str, any_scale: bool) -> None:
    """A given scale for all elements; positive and finite, or any."""
    source, form = SOURCES[dtype], fp8_format(element)
    with k.range(k["rows"]) as row:
        quantize_row(k, source, form, row, k["scale"], any_scale)


@kernel(src=PTR, out=PTR, scale_inv=PTR, **MATRIX)
def quantize_fp8_rows(k: Kernel, dtype: str, element: str) -> None:
    """Each row with the scale of its own amax."""
    source, form = SOURCES[dtype], fp8_format(element)
    with k.range(k["rows"]) as row:
        scale = fp8_scale(row_amax(k, source, row), form, power_of_two=False)
        k.pointer("scale_inv").at(row * 4).store(1.0 / scale)
        quantize_row(k, source, form, row, scale)


def quantize_row(
    k: Kernel,
    source: Source,
    form: ElementFormat,
    row: Value,
    scale: Value,
    any_scale: bool = False,
) -> None:
    """Codes of one row under one scale; positive and finite, or any."""
    factor = scale.splat(16)
    walk = Walk(k, GROUP, [matrix(k, source.nbytes)], [compact(k, "out", 1, 1)])
    with walk.groups(row) as (src, codes):
        for i, address in enumerate(source.vectors(src.start, STEPS)):
            source.prefetch(address.at(AHEAD))
            pair = source.pair(address)
            if any_scale:
                found = fp8_codes_any(pair, factor, form)
            else:
                found = fp8_codes(pair, factor, form, in_range=False)
            codes.start.at(i * VECTOR).store(found)


def fp8_scale(
    amax: Value,
    form: ElementFormat,
    power_of_two: bool,
    epsilon: Value | float = 0.0,
    value_for_inf: float = FLOAT32_MAX,
) -> Value:
    """The scale that maps `amax` (not NaN) to the largest value of the format, in fp32."""
    amax = select(amax < epsilon, epsilon, amax)
    scale = form.max / amax
    scale = select(scale.equals(math.inf), value_for_inf, scale)
    if power_of_two:
        scale = (scale.bits() & 0xFF800000).as_f32()
    usable = (amax > 0.0) & (amax < math.inf)
    return select(usable, scale, 1.0)


@kernel(data=PTR, scale_inv=F32, out=PTR, **COMPACT)
def dequantize_fp8(k: Kernel, element: str, dtype: str) -> None:
    """One scale for all codes."""
    with k.range(k["rows"]) as row:
        dequantize_row(k, element, dtype, row, k["scale_inv"])


@kernel(data=PTR, scale_inv=PTR, out=PTR, **COMPACT)
def dequantize_fp8_rows(k: Kernel, element: str, dtype: str) -> None:
    """One scale per row."""
    with k.range(k["rows"]) as row:
        dequantize_row(k, element, dtype, row, k.pointer("scale_inv").at(row * 4).load(F32))


def dequantize_row(k: Kernel, element: str, dtype: str, row: Value, scale_inv: Value) -> None:
    """Values of one row under one scale."""
    form, sink = fp8_format(element), SINKS[dtype]
    factor = scale_inv.splat(16)
    walk = Walk(k, GROUP, [compact(k, "data", 1, 1)], [compact(k, "out", 1, sink.nbytes)])
    with walk.groups(row) as (data, out):
        for i in range(STEPS):
            even, odd = decode_fp8_pair(data.start.at(i * VECTOR), form)
            sink.store(out.start.at(i * sink.vector_nbytes), even * factor, odd * factor)


def host_quantize_fp8(
    src: int,
    dtype: str,
    rows: int,
    cols: int,
    row_stride: int,
    scale: float,
    element: str,
    out: int,
    *,
    col_stride: int = 1,
    threads: int = 0,
) -> None:
    """Codes of x * scale: `out` (rows, cols)."""
    x = high_precision(src, dtype, rows, cols, row_stride, col_stride)
    kernel = quantize_fp8(dtype, element, not 0.0 < scale < math.inf)

    def work(p: Piece) -> None:
        kernel(p.address, p.at(out, 1, 1), scale, p.rows, p.cols, p.row_stride)

    for_each_piece(work, x, threads=threads)


def host_quantize_fp8_rows(
    src: int,
    dtype: str,
    rows: int,
    cols: int,
    row_stride: int,
    element: str,
    out: int,
    out_scale_inv: int,
    *,
    col_stride: int = 1,
    threads: int = 0,
) -> None:
    """Each row with the scale of its own amax.

    `out` (rows, cols), `out_scale_inv` fp32 (rows, 1).
    """
    x = high_precision(src, dtype, rows, cols, row_stride, col_stride)
    kernel = quantize_fp8_rows(dtype, element)

    def work(p: Piece) -> None:
        scale_inv = out_scale_inv + 4 * p.first_row
        kernel(p.address, p.at(out, 1, 1), scale_inv, p.rows, p.cols, p.row_stride)

    for_each_piece(work, x, block_cols=None, threads=threads)


def host_dequantize_fp8(
    data: int,
    rows: int,
    cols: int,
    scale_inv: float,
    element: str,
    dtype: str,
    out: int,
    *,
    threads: int = 0,
) -> None:
    """Decode codes (rows, cols) with one scale: `out` (rows, cols) of `dtype`."""
    nbytes = value_nbytes(dtype)
    kernel = dequantize_fp8(element, dtype)

    def work(p: Piece) -> None:
        kernel(p.at(data, 1, 1), scale_inv, p.at(out, 1, nbytes), p.rows, p.cols)

    for_each_piece(work, contiguous(rows, cols), threads=threads)


def host_dequantize_fp8_rows(
    data: int,
    rows: int,
    cols: int,
    scale_inv: int,
    element: str,
    dtype: str,
    out: int,
    *,
    threads: int = 0,
) -> None:
    """Decode codes (rows, cols) with one scale per row, fp32 (rows, 1)."""
    nbytes = value_nbytes(dtype)
    kernel = dequantize_fp8_rows(element, dtype)

    def work(p: Piece) -> None:
        scales = scale_inv + 4 * p.first_row
        kernel(p.at(data, 1, 1), scales, p.at(out, 1, nbytes), p.rows, p.cols)

    for_each_piece(work, contiguous(rows, cols), block_cols=None, threads=threads)
