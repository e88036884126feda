"""NVFP4: E2M1 elements, one E4M3 scale per 16, an fp32 amax per tensor or row."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

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
from qrole_kernels.cpu.nvfp4_blocks import (
    AMAX,
    BLOCK,
    BLOCK_OF_LANE,
    BLOCKS,
    GROUP,
    STEPS,
    block_factors,
    e4m3_codes,
    encode_scale,
    row_amax,
    stays_in_range,
    to_nearest,
    write_blocks,
)
from qrole_kernels.cpu.nvfp4_four_over_six import ERRORS, quantize_nvfp4_four_over_six
from qrole_kernels.cpu.pieces import Matrix, Piece, for_each_piece
from qrole_kernels.cpu.rounding import FLOAT32_MAX, fp4_codes_stochastic
from qrole_kernels.cpu.simd import F32, I8, I32, PTR, Value, lanes, minimum
from qrole_kernels.cpu.sink import SINKS, byte_pair, decode, decode_fp4_pair
from qrole_kernels.cpu.source import SOURCES, VECTOR, Pair
from qrole_kernels.errors import ArgumentError
from qrole_kernels.formats import E4M3

BLOCK_ROWS = (1, BLOCK)
E4M3_MAX = (448, 256)


@kernel(src=PTR, **AMAX, random=PTR, out=PTR, scale=PTR, **MATRIX)
def quantize_nvfp4(k: Kernel, dtype: str, block_rows: int, stochastic: bool) -> None:
    """Blocks of (block_rows, 16), block_rows 1 or 16; every row gets the scales of its blocks.

    `random` has a byte per element and is read for stochastic rounding only.
    """
    source = SOURCES[dtype]
    inputs = [matrix(k, source.nbytes), *([compact(k, "random", 1, 1)] if stochastic else [])]
    outputs = [compact(k, "out", 2, 1), compact(k, "scale", BLOCK, 1)]
    walk = Walk(k, GROUP, inputs, outputs, block_rows)

    with walk.rows() as row:
        lines = walk.lines(row)
        s_enc = encode_scale(row_amax(k, row), k["full_scale"])
        per_amax = (s_enc * (1 / 6)).splat(BLOCKS)
        with walk.groups(row) as (src, *random, codes, scales):
            amax = block_amax(k, source, src, STEPS, None if block_rows == 1 else lines, BLOCKS)
            wanted = minimum(amax.value * per_amax, FLOAT32_MAX)
            scale = e4m3_codes(wanted)
            factor = block_factors(scale, s_enc.splat(BLOCKS))

            def stochastically(pair: Pair, factor: Value, line: Value, i: Value) -> Value:
                bits = byte_pair(random[0].line(line).at(i * VECTOR))
                return fp4_codes_stochastic(pair, factor, bits)

            def write(in_range: bool) -> None:
                encode = stochastically if stochastic else to_nearest(in_range)
                write_blocks(walk, source, (src, codes, scales), lines, scale, factor, encode)

            if stochastic:
                write(in_range=False)
            else:
                k.either(stays_in_range(amax, wanted), write)


@kernel(data=PTR, scale=PTR, **AMAX, out=PTR, **COMPACT)
def dequantize_nvfp4(k: Kernel, dtype: str) -> None:
    """One scale per 16 elements of each row."""
    sink = SINKS[dtype]
    inputs = [compact(k, "data", 2, 1), compact(k, "scale", BLOCK, 1)]
    walk = Walk(k, GROUP, inputs, [compact(k, "out", 1, sink.nbytes)])
    to_amax = (1.0 / k["full_scale"]).splat(BLOCKS)
    factors = k.scratch(4 * BLOCKS)

    with walk.rows() as row:
        amax = row_amax(k, row).splat(BLOCKS)
        with walk.groups(row) as (data, scales, out):
            scale = decode(scales.start.load(lanes(I8, BLOCKS)).widen(I32), E4M3)
            factors.store(scale * amax * to_amax)
            with k.range(STEPS) as i:
                two = factors.at(i * 8).load(lanes(F32, 2)).take(BLOCK_OF_LANE)
                even, odd = decode_fp4_pair(data.start.at(i * (VECTOR // 2)))
                sink.store(out.start.at(i * sink.vector_nbytes), even * two, odd * two)


@dataclass(frozen=True)
class _Options:
    """How to quantize.

    Invariants: every option has one of its values; four-over-six compares errors of rounding to
    nearest, and so excludes random bits.
    """

    block_rows: int
    e4m3_max: int
    four_over_six: str
    random_bits: int

    def __post_init__(self) -> None:
        """Check the invariants."""
        check_choice("block_rows", self.block_rows, BLOCK_ROWS)
        check_choice("e4m3_max", self.e4m3_max, E4M3_MAX)
        check_choice("four_over_six", self.four_over_six, ("", *ERRORS))
        if self.four_over_six and self.random_bits:
            raise ArgumentError(
                "random_bits together with four_over_six", "one of the two", "Drop random_bits."
            )


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
    four_over_six: str = "",
    random_bits: int = 0,
    col_stride: int = 1,
    threads: int = 0,
) -> None:
    """Quantize in blocks of (block_rows, 16), block_rows 1 or 16, under one amax.

    `out` packed (rows, ceil(cols / 2)), `out_scale` E4M3 (rows, ceil(cols / 16)); `random_bits`
    (rows, cols) bytes for stochastic rounding, 0 for none; `four_over_six` "mae" or "mse" chooses
    the scale of each block by this error.
    """
    x = high_precision(src, dtype, rows, cols, row_stride, col_stride)
    options = _Options(block_rows, e4m3_max, four_over_six, random_bits)
    given = ctypes.c_float(amax)
    _quantize(x, dtype, (ctypes.addressof(given), 0), options, (out, out_scale), threads)


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
    four_over_six: str = "",
    random_bits: int = 0,
    col_stride: int = 1,
    threads: int = 0,
) -> None:
    """The same in blocks of (1, 16), with one amax per row: fp32 (rows,) at address `amax`."""
    x = high_precision(src, dtype, rows, cols, row_stride, col_stride)
    options = _Options(1, e4m3_max, four_over_six, random_bits)
    _quantize(x, dtype, (amax, 4), options, (out, out_scale), threads)


def _quantize(
    x: Matrix,
    dtype: str,
    amax: tuple[int, int],
    options: _Options,
    outputs: tuple[int, int],
    threads: int,
) -> None:
    (address, step), (out, scale), random = amax, outputs, options.random_bits
    if options.four_over_six:
        kernel = quantize_nvfp4_four_over_six(dtype, options.block_rows, options.four_over_six)
    else:
        kernel = quantize_nvfp4(dtype, options.block_rows, random != 0)

    def work(p: Piece) -> None:
        full = address + step * p.first_row, step, 6.0 * options.e4m3_max
        tensors = p.at(random, 1, 1), p.at(out, 2, 1), p.at(scale, BLOCK, 1)
        kernel(p.address, *full, *tensors, p.rows, p.cols, p.row_stride)

    for_each_piece(work, x, options.block_rows, None if step else BLOCK, threads)


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
