"""MXFP4: E2M1 elements, one E8M0 scale per 32 of them, three scale rules."""

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
from qrole_kernels.cpu.rounding import e8m0_reciprocal, e8m0_up, fp4_codes
from qrole_kernels.cpu.simd import F32, I8, I32, PTR, Value, lanes, maximum, minimum
from qrole_kernels.cpu.sink import SINKS, decode_e8m0, decode_fp4_pair
from qrole_kernels.cpu.source import AHEAD, SOURCES, VECTOR
from qrole_kernels.formats import E2M1

BLOCK = 32
GROUP = 16 * BLOCK
STEPS = GROUP // VECTOR
RULES = ("rceil", "floor", "even")
MAX_EXPONENT = 2
"""Exponent of the largest E2M1 value."""


@kernel(src=PTR, out=PTR, scale=PTR, **MATRIX)
def quantize_mxfp4(k: Kernel, dtype: str, rule: str) -> None:
    """Blocks of (1, 32)."""
    source = SOURCES[dtype]
    outputs = [compact(k, "out", 2, 1), compact(k, "scale", BLOCK, 1)]
    walk = Walk(k, GROUP, [matrix(k, source.nbytes)], outputs)
    factors = k.scratch(64)

    with walk.rows() as row, walk.groups(row) as (src, codes, scales):
        amax = block_amax(k, source, src, STEPS, None)
        scale = scale_code(amax.value, rule)
        scales.start.store(scale.narrow(I8))
        factors.store(e8m0_reciprocal(scale))
        with k.range(STEPS) as i:
            address = src.start.at(i * source.vector_nbytes)
            source.prefetch(address.at(AHEAD))
            factor = factors.at(i * 4).load(F32).splat(16)
            place = codes.start.at(i * (VECTOR // 2))
            place.store(fp4_codes(source.pair(address), factor, in_range=False))


def scale_code(amax: Value, rule: str) -> Value:
    """The E8M0 code of a block by one of `RULES`."""
    if rule == "rceil":
        return e8m0_up(amax * (1.0 / E2M1.max))
    bits = amax.bits() + (1 << 21) if rule == "even" else amax.bits()
    return minimum(maximum((bits >> 23) - MAX_EXPONENT, 0), 254)


@kernel(data=PTR, scale=PTR, out=PTR, **COMPACT)
def dequantize_mxfp4(k: Kernel, dtype: str) -> None:
    """Blocks of (1, 32)."""
    sink = SINKS[dtype]
    inputs = [compact(k, "data", 2, 1), compact(k, "scale", BLOCK, 1)]
    walk = Walk(k, GROUP, inputs, [compact(k, "out", 1, sink.nbytes)])
    factors = k.scratch(64)

    with walk.rows() as row, walk.groups(row) as (data, scales, out):
        factors.store(decode_e8m0(scales.start.load(lanes(I8, 16)).widen(I32)))
        with k.range(STEPS) as i:
            factor = factors.at(i * 4).load(F32).splat(16)
            even, odd = decode_fp4_pair(data.start.at(i * (VECTOR // 2)))
            sink.store(out.start.at(i * sink.vector_nbytes), factor * even, factor * odd)


def host_quantize_mxfp4(
    src: int,
    dtype: str,
    rows: int,
    cols: int,
    row_stride: int,
    rule: str,
    out: int,
    out_scale: int,
    *,
    col_stride: int = 1,
    threads: int = 0,
) -> None:
    """Quantize in blocks of (1, 32) by the scale rule "rceil", "floor" or "even".

    `out` packed (rows, ceil(cols / 2)), `out_scale` E8M0 (rows, ceil(cols / 32)).
    """
    x = high_precision(src, dtype, rows, cols, row_stride, col_stride)
    check_choice("rule", rule, RULES)
    kernel = quantize_mxfp4(dtype, rule)

    def work(p: Piece) -> None:
        places = p.at(out, 2, 1), p.at(out_scale, BLOCK, 1)
        kernel(p.address, *places, p.rows, p.cols, p.row_stride)

    for_each_piece(work, x, 1, BLOCK, threads)


def host_dequantize_mxfp4(
    data: int,
    rows: int,
    cols: int,
    scale: int,
    dtype: str,
    out: int,
    *,
    threads: int = 0,
) -> None:
    """Decode packed codes with E8M0 scales (rows, ceil(cols / 32))."""
    nbytes = value_nbytes(dtype)
    kernel = dequantize_mxfp4(dtype)

    def work(p: Piece) -> None:
        given = p.at(data, 2, 1), p.at(scale, BLOCK, 1)
        kernel(*given, p.at(out, 1, nbytes), p.rows, p.cols)

    for_each_piece(work, contiguous(rows, cols), 1, BLOCK, threads)
