"""NVFP4: E2M1 elements, one E4M3 scale per 16, an fp32 amax per tensor or row (spec: section 5)."""

from __future__ import annotations

import ctypes

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
from qrole_kernels.cpu.pieces import Matrix, Piece, for_each_piece
from qrole_kernels.cpu.rounding import FLOAT32_MAX, fp4_codes, fp4_codes_stochastic, saturate_code
from qrole_kernels.cpu.simd import F32, I8, I32, I64, PTR, Value, lanes, minimum, select
from qrole_kernels.cpu.sink import SINKS, byte_pair, decode, decode_fp4_pair
from qrole_kernels.cpu.source import AHEAD, SOURCES, VECTOR
from qrole_kernels.formats import E4M3

BLOCK = 16
BLOCK_ROWS = (1, BLOCK)
E4M3_MAX = (448, 256)
GROUP = 16 * BLOCK
STEPS = GROUP // VECTOR
AMAX = {"amax": PTR, "amax_step": I64, "full_scale": F32}
"""The amax of row r lies `r * amax_step` bytes from `amax` (0: one for all rows); `full_scale` is
what an amax maps to, 6 times the largest block scale."""

_FACTOR_OF_LANE = [0] * 8 + [1] * 8


@kernel(src=PTR, **AMAX, random=PTR, out=PTR, scale=PTR, **MATRIX)
def quantize_nvfp4(k: Kernel, dtype: str, block_rows: int, stochastic: bool) -> None:
    """Blocks of (block_rows, 16), block_rows 1 or 16; every row gets the scales of its blocks.

    `random` has a byte per element and is read for stochastic rounding only.
    """
    source = SOURCES[dtype]
    inputs = [matrix(k, source.nbytes), *([compact(k, "random", 1, 1)] if stochastic else [])]
    outputs = [compact(k, "out", 2, 1), compact(k, "scale", BLOCK, 1)]
    walk = Walk(k, GROUP, inputs, outputs, block_rows)
    ahead = AHEAD if block_rows == 1 else GROUP * source.nbytes
    factors = k.scratch(64)

    with walk.rows() as row:
        lines = walk.lines(row)
        s_enc = encode_scale(k, row)
        s_dec = 1.0 / s_enc
        with walk.groups(row) as (src, *random, codes, scales):
            amax = block_amax(k, source, src, STEPS, None if block_rows == 1 else lines)
            scale = minimum(amax * (s_enc * (1 / 6)).splat(16), FLOAT32_MAX)
            scale_codes = e4m3_codes(scale)
            value = decode(scale_codes, E4M3)
            factors.store(minimum(1.0 / (value * s_dec.splat(16)), FLOAT32_MAX))
            with k.range(lines) as line:
                scales.line(line).store(scale_codes.narrow(I8))
                with k.range(STEPS) as i:
                    address = src.line(line).at(i * source.vector_nbytes)
                    source.prefetch(address.at(ahead))
                    two = factors.at(i * 8).load(lanes(F32, 2)).take(_FACTOR_OF_LANE)
                    pair = source.pair(address)
                    if stochastic:
                        halves = byte_pair(random[0].line(line).at(i * VECTOR))
                        found = fp4_codes_stochastic(pair, two, halves)
                    else:
                        found = fp4_codes(pair, two)
                    codes.line(line).at(i * (VECTOR // 2)).store(found)


def encode_scale(k: Kernel, row: Value) -> Value:
    """S_enc of a row: what brings its block maxima into the range of the block scales."""
    amax = k.pointer("amax").at(row * k["amax_step"]).load(F32)
    scale = minimum(k["full_scale"] / amax, FLOAT32_MAX)
    return select(amax.equals(0.0) | scale.equals(0.0), 1.0, scale)


def e4m3_codes(value: Value) -> Value:
    """E4M3 codes in 32-bit lanes; negative only under a negative amax."""
    sign = (value.bits() >> 24) & 0x80
    return (saturate_code(value.magnitude(), E4M3) & 0x7F) | sign


@kernel(data=PTR, scale=PTR, **AMAX, out=PTR, **COMPACT)
def dequantize_nvfp4(k: Kernel, dtype: str) -> None:
    """One scale per 16 elements of each row."""
    sink = SINKS[dtype]
    inputs = [compact(k, "data", 2, 1), compact(k, "scale", BLOCK, 1)]
    walk = Walk(k, GROUP, inputs, [compact(k, "out", 1, sink.nbytes)])
    to_amax = (1.0 / k["full_scale"]).splat(16)
    factors = k.scratch(64)

    with walk.rows() as row:
        amax = k.pointer("amax").at(row * k["amax_step"]).load(F32).splat(16)
        with walk.groups(row) as (data, scales, out):
            scale = decode(scales.start.load(lanes(I8, 16)).widen(I32), E4M3)
            factors.store(scale * amax * to_amax)
            with k.range(STEPS) as i:
                two = factors.at(i * 8).load(lanes(F32, 2)).take(_FACTOR_OF_LANE)
                even, odd = decode_fp4_pair(data.start.at(i * (VECTOR // 2)))
                sink.store(out.start.at(i * sink.vector_nbytes), even * two, odd * two)


def host_quantize_nvfp4(
    src: int,
    dtype: str,
    rows: int,
    cols: int,
    row_stride: int,
    amax: float,
    block_rows: int,
    e4m3_max: int,
    out: int,
    out_scale: int,
    *,
    random_bits: int = 0,
    col_stride: int = 1,
    threads: int = 0,
) -> None:
    """Quantize in blocks of (block_rows, 16), block_rows 1 or 16, under one amax.

    `out` packed (rows, ceil(cols / 2)), `out_scale` E4M3 (rows, ceil(cols / 16)); `random_bits`
    (rows, cols) bytes for stochastic rounding, 0 for none.
    """
    x = high_precision(src, dtype, rows, cols, row_stride, col_stride)
    check_choice("block_rows", block_rows, BLOCK_ROWS)
    given = ctypes.c_float(amax)
    _quantize(
        x, dtype, (ctypes.addressof(given), 0), block_rows, e4m3_max, (random_bits, out, out_scale), threads
    )


def host_quantize_nvfp4_rows(
    src: int,
    dtype: str,
    rows: int,
    cols: int,
    row_stride: int,
    amax: int,
    e4m3_max: int,
    out: int,
    out_scale: int,
    *,
    random_bits: int = 0,
    col_stride: int = 1,
    threads: int = 0,
) -> None:
    """The same in blocks of (1, 16), with one amax per row: fp32 (rows,) at address `amax`."""
    x = high_precision(src, dtype, rows, cols, row_stride, col_stride)
    _quantize(x, dtype, (amax, 4), 1, e4m3_max, (random_bits, out, out_scale), threads)


def _quantize(
    x: Matrix,
    dtype: str,
    amax: tuple[int, int],
    block_rows: int,
    e4m3_max: int,
    places: tuple[int, int, int],
    threads: int,
) -> None:
    check_choice("e4m3_max", e4m3_max, E4M3_MAX)
    (address, step), (random, out, scale) = amax, places
    kernel = quantize_nvfp4(dtype, block_rows, random != 0)

    def work(p: Piece) -> None:
        full = address + step * p.first_row, step, 6.0 * e4m3_max
        tensors = p.at(random, 1, 1), p.at(out, 2, 1), p.at(scale, BLOCK, 1)
        kernel(p.address, *full, *tensors, p.rows, p.cols, p.row_stride)

    for_each_piece(work, x, block_rows, None if step else BLOCK, threads)


def host_dequantize_nvfp4(
    data: int,
    rows: int,
    cols: int,
    scale: int,
    amax: float,
    e4m3_max: int,
    dtype: str,
    out: int,
    *,
    threads: int = 0,
) -> None:
    """Decode packed codes with E4M3 scales (rows, ceil(cols / 16)) and one amax."""
    nbytes = value_nbytes(dtype)
    given = ctypes.c_float(amax)
    places = (data, scale, out, nbytes)
    _dequantize(rows, cols, dtype, (ctypes.addressof(given), 0), e4m3_max, places, threads)


def host_dequantize_nvfp4_rows(
    data: int,
    rows: int,
    cols: int,
    scale: int,
    amax: int,
    e4m3_max: int,
    dtype: str,
    out: int,
    *,
    threads: int = 0,
) -> None:
    """The same with one amax per row: fp32 (rows,) at address `amax`."""
    nbytes = value_nbytes(dtype)
    places = (data, scale, out, nbytes)
    _dequantize(rows, cols, dtype, (amax, 4), e4m3_max, places, threads)


def _dequantize(
    rows: int,
    cols: int,
    dtype: str,
    amax: tuple[int, int],
    e4m3_max: int,
    places: tuple[int, int, int, int],
    threads: int,
) -> None:
    check_choice("e4m3_max", e4m3_max, E4M3_MAX)
    kernel = dequantize_nvfp4(dtype)
    (address, step), (data, scale, out, nbytes) = amax, places

    def work(p: Piece) -> None:
        full = address + step * p.first_row, step, 6.0 * e4m3_max
        given = p.at(data, 2, 1), p.at(scale, BLOCK, 1)
        kernel(*given, *full, p.at(out, 1, nbytes), p.rows, p.cols)

    for_each_piece(work, contiguous(rows, cols), 1, None if step else BLOCK, threads)
