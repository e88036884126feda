"""FP8 with one fp32 scale per 1x128 or 128x128 block."""

from __future__ import annotations

from qrole_kernels.cpu.arguments import (
    check_choice,
    contiguous,
    high_precision,
    value_nbytes,
)
from qrole_kernels.cpu.blocks import KeysOf, column_keys, one_block, without_nan
from qrole_kernels.cpu.builder import Kernel
from qrole_kernels.cpu.fp8 import fp8_scale
from qrole_kernels.cpu.groups import COMPACT, MATRIX, Walk, compact, matrix
from qrole_kernels.cpu.jit import kernel
from qrole_kernels.cpu.pieces import Piece, for_each_piece
from qrole_kernels.cpu.rounding import FLOAT32_MAX, fp8_codes
from qrole_kernels.cpu.simd import F32, PTR, Value, gather
from qrole_kernels.cpu.sink import SINKS, decode_fp8_pair
from qrole_kernels.cpu.source import AHEAD, SOURCES, VECTOR
from qrole_kernels.formats import fp8_format

BLOCK = 128
BLOCK_ROWS = (1, BLOCK)
STEPS = BLOCK // VECTOR
PANEL = 4
"""Blocks side by side that are worked on together, so that rows are read in long stretches."""
INPUT_MAX = {"f32": FLOAT32_MAX, "bf16": float.fromhex("0x1.FEp127"), "f16": 65504.0}
"""The scale where amax is so small that the quotient overflows."""


@kernel(src=PTR, epsilon=F32, out=PTR, scale_inv=PTR, **MATRIX)
def quantize_fp8_block(
    k: Kernel, dtype: str, element: str, block_rows: int, power_of_two: bool
) -> None:
    """Blocks of (block_rows, 128)."""
    source, form = SOURCES[dtype], fp8_format(element)
    outputs = [compact(k, "out", 1, 1), compact(k, "scale_inv", BLOCK, 4, block_rows)]
    walk = Walk(k, PANEL * BLOCK, [matrix(k, source.nbytes)], outputs, block_rows)
    # The next panel of these rows, or of this row.
    ahead = AHEAD if block_rows == 1 else PANEL * BLOCK * source.nbytes

    with walk.rows() as row, walk.groups(row) as (src, codes, scales):
        lines = walk.lines(row)

        def compute(keys: KeysOf) -> Value:
            columns = column_keys(k, source, src, lines, PANEL * STEPS, keys)
            blocks = [columns[i : i + STEPS] for i in range(0, len(columns), STEPS)]
            return gather([one_block(source, block) for block in blocks])

        amax = without_nan(k, source, compute)
        scale = fp8_scale(
            amax.value, form, power_of_two, k["epsilon"].splat(PANEL), INPUT_MAX[dtype]
        )
        scales.start.store(1.0 / scale)
        factors = [scale.lane(i).splat(16) for i in range(PANEL)]

        def write(in_range: bool) -> None:
            with k.range(lines) as line:
                for i, address in enumerate(source.vectors(src.line(line), PANEL * STEPS)):
                    source.prefetch(address.at(ahead))
                    found = fp8_codes(source.pair(address), factors[i // STEPS], form, in_range)
                    codes.line(line).at(i * VECTOR).store(found)

        k.either(amax.finite, write)


@kernel(data=PTR, scale_inv=PTR, out=PTR, **COMPACT)
def dequantize_fp8_block(k: Kernel, element: str, block_rows: int, dtype: str) -> None:
    """Blocks of (block_rows, 128)."""
    form, sink = fp8_format(element), SINKS[dtype]
    inputs = [compact(k, "data", 1, 1), compact(k, "scale_inv", BLOCK, 4, block_rows)]
    walk = Walk(k, BLOCK, inputs, [compact(k, "out", 1, sink.nbytes)])
    with walk.rows() as row, walk.groups(row) as (data, scales, out):
        factor = scales.start.load(F32).splat(16)
        for i in range(STEPS):
            even, odd = decode_fp8_pair(data.start.at(i * VECTOR), form)
            sink.store(out.start.at(i * sink.vector_nbytes), even * factor, odd * factor)


def host_quantize_fp8_block(
    src: int,
    dtype: str,
    rows: int,
    cols: int,
    row_stride: int,
    element: str,
    block_rows: int,
    power_of_two: bool,
    epsilon: float,
    out: int,
    out_scale_inv: int,
    *,
    col_stride: int = 1,
    threads: int = 0,
) -> None:
    """Quantize in blocks of (block_rows, 128), block_rows 1 or 128.

    `out` (rows, cols), `out_scale_inv` fp32 (row blocks, column blocks).
    """
    x = high_precision(src, dtype, rows, cols, row_stride, col_stride)
    check_choice("block_rows", block_rows, BLOCK_ROWS)
    kernel = quantize_fp8_block(dtype, element, block_rows, power_of_two)

    def work(p: Piece) -> None:
        scale_inv = p.at(out_scale_inv, BLOCK, 4, block_rows)
        kernel(p.address, epsilon, p.at(out, 1, 1), scale_inv, p.rows, p.cols, p.row_stride)

    for_each_piece(work, x, block_rows, BLOCK, threads)


def host_dequantize_fp8_block(
    data: int,
    rows: int,
    cols: int,
    scale_inv: int,
    element: str,
    block_rows: int,
    dtype: str,
    out: int,
    *,
    threads: int = 0,
) -> None:
    """Decode codes (rows, cols) with one scale per (block_rows, 128) block, fp32."""
    nbytes = value_nbytes(dtype)
    check_choice("block_rows", block_rows, BLOCK_ROWS)
    kernel = dequantize_fp8_block(element, block_rows, dtype)

    def work(p: Piece) -> None:
        scales = p.at(scale_inv, BLOCK, 4, block_rows)
        kernel(p.at(data, 1, 1), scales, p.at(out, 1, nbytes), p.rows, p.cols)

    for_each_piece(work, contiguous(rows, cols), block_rows, BLOCK, threads)
