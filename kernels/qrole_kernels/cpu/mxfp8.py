"""MXFP8: one E8M0 scale per 32 elements or per 32x32 block."""

from __future__ import annotations

from qrole_kernels.cpu.arguments import (
    check_choice,
    contiguous,
    high_precision,
    value_nbytes,
)
from qrole_kernels.cpu.blocks import block_amax
from qrole_kernels.cpu.builder import Kernel
from qrole_kernels.cpu.groups import COMPACT, MATRIX, Walk, compact, matrix
from qrole_kernels.cpu.jit import kernel
from qrole_kernels.cpu.pieces import Piece, for_each_piece
from qrole_kernels.cpu.rounding import e8m0_reciprocal, e8m0_up, fp8_codes
from qrole_kernels.cpu.simd import F32, I8, I16, I32, PTR, Value, lanes, maximum, select
from qrole_kernels.cpu.sink import SINKS, byte_pair, decode_e8m0, decode_fp8_pair
from qrole_kernels.cpu.source import AHEAD, F32_INF, SOURCES, VECTOR
from qrole_kernels.formats import ElementFormat, fp8_format

BLOCK = 32
BLOCKS = ((1, BLOCK), (BLOCK, 1), (BLOCK, BLOCK))
GROUP = 16 * BLOCK
STEPS = GROUP // VECTOR
COLUMN_STEPS = 4
"""Vectors side by side in a tile of the column-wise kernel."""


@kernel(src=PTR, out=PTR, scale=PTR, **MATRIX)
def quantize_mxfp8_rows(k: Kernel, dtype: str, element: str, block_rows: int) -> None:
    """Blocks of (block_rows, 32), block_rows 1 or 32."""
    source, form = SOURCES[dtype], fp8_format(element)
    outputs = [compact(k, "out", 1, 1), compact(k, "scale", BLOCK, 1, block_rows)]
    walk = Walk(k, GROUP, [matrix(k, source.nbytes)], outputs, block_rows)
    ahead = AHEAD if block_rows == 1 else GROUP * source.nbytes
    factors = k.scratch(64)

    with walk.rows() as row, walk.groups(row) as (src, codes, scales):
        lines = walk.lines(row)
        amax = block_amax(k, source, src, STEPS, None if block_rows == 1 else lines)
        scale = scale_code(amax.value, form)
        scales.start.store(scale.narrow(I8))
        factors.store(e8m0_reciprocal(scale))

        def write(in_range: bool) -> None:
            with k.range(lines) as line, k.range(STEPS) as i:
                address = src.line(line).at(i * source.vector_nbytes)
                source.prefetch(address.at(ahead))
                factor = factors.at(i * 4).load(F32).splat(16)
                place = codes.line(line).at(i * VECTOR)
                place.store(fp8_codes(source.pair(address), factor, form, in_range))

        k.either(amax.finite, write)


@kernel(src=PTR, out=PTR, scale=PTR, **MATRIX)
def quantize_mxfp8_columns(k: Kernel, dtype: str, element: str) -> None:
    """Blocks of (32, 1)."""
    source, form = SOURCES[dtype], fp8_format(element)
    outputs = [compact(k, "out", 1, 1), compact(k, "scale", 1, 1, BLOCK)]
    walk = Walk(k, COLUMN_STEPS * VECTOR, [matrix(k, source.nbytes)], outputs, BLOCK)
    ahead = COLUMN_STEPS * source.vector_nbytes

    with walk.rows() as row, walk.groups(row) as (src, codes, scales):
        lines = walk.lines(row)
        zero = k.constant(lanes(I32, 16), 0)
        largest = [k.variable(zero) for _ in range(2 * COLUMN_STEPS)]
        with k.range(lines) as line:
            pairs = [source.pair(a) for a in source.vectors(src.line(line), COLUMN_STEPS)]
            magnitudes = [half.bits() for pair in pairs for half in (pair.even, pair.odd)]
            for variable, bits in zip(largest, magnitudes, strict=True):
                variable.set(maximum(variable.get(), select(bits > F32_INF, 0, bits)))
        found = [scale_code(variable.get().as_f32(), form) for variable in largest]
        for i in range(COLUMN_STEPS):
            even, odd = found[2 * i : 2 * i + 2]
            scales.start.at(i * VECTOR).store((even | (odd << 8)).narrow(I16))
        factors = [e8m0_reciprocal(scale) for scale in found]
        with k.range(lines) as line:
            for i, address in enumerate(source.vectors(src.line(line), COLUMN_STEPS)):
                source.prefetch(address.at(ahead))
                two = factors[2 * i], factors[2 * i + 1]
                place = codes.line(line).at(i * VECTOR)
                place.store(fp8_codes(source.pair(address), two, form, in_range=False))


def scale_code(amax: Value, form: ElementFormat) -> Value:
    """The E8M0 code of amax / form.max, rounded up; the product with the reciprocal is as exact."""
    return e8m0_up(amax * (1.0 / form.max))


@kernel(data=PTR, scale=PTR, out=PTR, **COMPACT)
def dequantize_mxfp8_rows(k: Kernel, element: str, block_rows: int, dtype: str) -> None:
    """Blocks of (block_rows, 32), block_rows 1 or 32."""
    form, sink = fp8_format(element), SINKS[dtype]
    inputs = [compact(k, "data", 1, 1), compact(k, "scale", BLOCK, 1, block_rows)]
    walk = Walk(k, GROUP, inputs, [compact(k, "out", 1, sink.nbytes)])
    factors = k.scratch(64)

    with walk.rows() as row, walk.groups(row) as (data, scales, out):
        factors.store(decode_e8m0(scales.start.load(lanes(I8, 16)).widen(I32)))
        with k.range(STEPS) as i:
            factor = factors.at(i * 4).load(F32).splat(16)
            even, odd = decode_fp8_pair(data.start.at(i * VECTOR), form)
            sink.store(out.start.at(i * sink.vector_nbytes), factor * even, factor * odd)


@kernel(data=PTR, scale=PTR, out=PTR, **COMPACT)
def dequantize_mxfp8_columns(k: Kernel, element: str, dtype: str) -> None:
    """Blocks of (32, 1)."""
    form, sink = fp8_format(element), SINKS[dtype]
    inputs = [compact(k, "data", 1, 1), compact(k, "scale", 1, 1, BLOCK)]
    walk = Walk(k, VECTOR, inputs, [compact(k, "out", 1, sink.nbytes)])
    with walk.rows() as row, walk.groups(row) as (data, scales, out):
        even_factor, odd_factor = (decode_e8m0(codes) for codes in byte_pair(scales.start))
        even, odd = decode_fp8_pair(data.start, form)
        sink.store(out.start, even_factor * even, odd_factor * odd)


def host_quantize_mxfp8(
    src: int,
    dtype: str,
    rows: int,
    cols: int,
    row_stride: int,
    element: str,
    block_rows: int,
    block_cols: int,
    out: int,
    out_scale: int,
    *,
    col_stride: int = 1,
    threads: int = 0,
) -> None:
    """Quantize in blocks of (1, 32) row-wise, (32, 1) column-wise or (32, 32).

    `out` (rows, cols), `out_scale` E8M0 (row blocks, column blocks).
    """
    x = high_precision(src, dtype, rows, cols, row_stride, col_stride)
    check_choice("(block_rows, block_cols)", (block_rows, block_cols), BLOCKS)
    if block_cols == 1:
        kernel = quantize_mxfp8_columns(dtype, element)
    else:
        kernel = quantize_mxfp8_rows(dtype, element, block_rows)

    def work(p: Piece) -> None:
        scale = p.at(out_scale, block_cols, 1, block_rows)
        kernel(p.address, p.at(out, 1, 1), scale, p.rows, p.cols, p.row_stride)

    for_each_piece(work, x, block_rows, block_cols, threads)


def host_dequantize_mxfp8(
    data: int,
    rows: int,
    cols: int,
    scale: int,
    element: str,
    block_rows: int,
    block_cols: int,
    dtype: str,
    out: int,
    *,
    threads: int = 0,
) -> None:
    """Decode codes (rows, cols) with one E8M0 scale per (block_rows, block_cols) block."""
    nbytes = value_nbytes(dtype)
    check_choice("(block_rows, block_cols)", (block_rows, block_cols), BLOCKS)
    if block_cols == 1:
        kernel = dequantize_mxfp8_columns(element, dtype)
    else:
        kernel = dequantize_mxfp8_rows(element, block_rows, dtype)

    def work(p: Piece) -> None:
        scales = p.at(scale, block_cols, 1, block_rows)
        kernel(p.at(data, 1, 1), scales, p.at(out, 1, nbytes), p.rows, p.cols)

    for_each_piece(work, contiguous(rows, cols), block_rows, block_cols, threads)
