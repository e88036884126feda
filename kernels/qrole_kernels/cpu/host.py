"""Kernels on raw memory, compiled by LLVM: addresses in, results written to addresses.

In all functions `src` is the address of a matrix of `rows` x `cols` elements of `dtype` ("f32", "bf16" or "f16"), whose
rows are `row_stride` elements apart; all other tensors are compact. Rows may be processed in portions that begin at
multiples of the block height. `threads` is the number of threads, 0 the default (`threads.default_threads`).
"""

from __future__ import annotations

import ctypes

from qrole_kernels.cpu import amax as _amax
from qrole_kernels.cpu import fp8, fp8_block, hadamard, mxfp4, mxfp8, nvfp4
from qrole_kernels.cpu.pieces import Matrix, Piece, split
from qrole_kernels.cpu.source import SOURCES
from qrole_kernels.cpu.threads import run


def _matrix(src: int, dtype: str, rows: int, cols: int, row_stride: int) -> Matrix:
    return Matrix(src, SOURCES[dtype].nbytes, rows, cols, row_stride)


def _compact(rows: int, cols: int) -> Matrix:
    return Matrix(0, 0, rows, cols, cols)


def host_amax(
    src: int, dtype: str, rows: int, cols: int, row_stride: int, *, threads: int = 0
) -> float:
    """The largest magnitude; NaN is ignored, an empty matrix has 0."""
    kernel = _amax.amax(dtype)
    pieces = split(_matrix(src, dtype, rows, cols, row_stride))
    found = (ctypes.c_float * len(pieces))()

    def work(index: int) -> None:
        p = pieces[index]
        kernel(p.address, ctypes.addressof(found) + 4 * index, p.rows, p.cols, p.row_stride)

    run(work, range(len(pieces)), threads)
    return max(found, default=0.0)


def host_amax_rows(
    src: int, dtype: str, rows: int, cols: int, row_stride: int, out: int, *, threads: int = 0
) -> None:
    """The largest magnitude of each row: `out` fp32 (rows)."""
    kernel = _amax.amax_rows(dtype)
    matrix = _matrix(src, dtype, rows, cols, row_stride)

    def work(p: Piece) -> None:
        kernel(p.address, out + 4 * p.first_row, p.rows, p.cols, p.row_stride)

    run(work, split(matrix, 1, cols + 1), threads)


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
    threads: int = 0,
) -> None:
    """Codes of x * scale: `out` (rows, cols)."""
    kernel = fp8.quantize_fp8(dtype, element)

    def work(p: Piece) -> None:
        kernel(p.address, p.at(out, 1, 1), scale, p.rows, p.cols, p.row_stride)

    run(work, split(_matrix(src, dtype, rows, cols, row_stride)), threads)


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
    threads: int = 0,
) -> None:
    """Each row with the scale of its own amax: `out` (rows, cols), `out_scale_inv` fp32 (rows, 1)."""
    kernel = fp8.quantize_fp8_rows(dtype, element)
    matrix = _matrix(src, dtype, rows, cols, row_stride)

    def work(p: Piece) -> None:
        scale_inv = out_scale_inv + 4 * p.first_row
        kernel(p.address, p.at(out, 1, 1), scale_inv, p.rows, p.cols, p.row_stride)

    run(work, split(matrix, 1, cols + 1), threads)


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
    threads: int = 0,
) -> None:
    """Blocks of (block_rows, 128): `out` (rows, cols), `out_scale_inv` fp32 (row blocks, column blocks)."""
    kernel = fp8_block.quantize_fp8_block(dtype, element, block_rows, power_of_two)

    def work(p: Piece) -> None:
        scale_inv = p.at(out_scale_inv, 128, 4, block_rows)
        kernel(p.address, epsilon, p.at(out, 1, 1), scale_inv, p.rows, p.cols, p.row_stride)

    run(work, split(_matrix(src, dtype, rows, cols, row_stride), block_rows, 128), threads)


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
    threads: int = 0,
) -> None:
    """Blocks of (1, 32), (32, 1) or (32, 32): `out` (rows, cols), `out_scale` E8M0 (row blocks, column blocks)."""
    if block_cols == 1:
        kernel = mxfp8.quantize_mxfp8_columns(dtype, element)
    else:
        kernel = mxfp8.quantize_mxfp8_rows(dtype, element, block_rows)

    def work(p: Piece) -> None:
        scale = p.at(out_scale, block_cols, 1, block_rows)
        kernel(p.address, p.at(out, 1, 1), scale, p.rows, p.cols, p.row_stride)

    run(work, split(_matrix(src, dtype, rows, cols, row_stride), block_rows, block_cols), threads)


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
    threads: int = 0,
) -> None:
    """Blocks of (block_rows, 16): `out` packed (rows, ceil(cols / 2)), `out_scale` E4M3 (rows, ceil(cols / 16))."""
    kernel = nvfp4.quantize_nvfp4(dtype, block_rows)
    given = ctypes.c_float(amax)

    def work(p: Piece) -> None:
        places = p.at(out, 2, 1), p.at(out_scale, 16, 1)
        full = (ctypes.addressof(given), 0, 6.0 * e4m3_max)
        kernel(p.address, *full, *places, p.rows, p.cols, p.row_stride)

    run(work, split(_matrix(src, dtype, rows, cols, row_stride), block_rows, 16), threads)


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
    threads: int = 0,
) -> None:
    """Blocks of (1, 16) under one amax per row, fp32 (rows) at the address `amax`."""
    kernel = nvfp4.quantize_nvfp4(dtype, 1)
    matrix = _matrix(src, dtype, rows, cols, row_stride)

    def work(p: Piece) -> None:
        places = p.at(out, 2, 1), p.at(out_scale, 16, 1)
        full = (amax + 4 * p.first_row, 4, 6.0 * e4m3_max)
        kernel(p.address, *full, *places, p.rows, p.cols, p.row_stride)

    run(work, split(matrix, 1, cols + 1), threads)


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
    threads: int = 0,
) -> None:
    """Blocks of (1, 32): `out` packed (rows, ceil(cols / 2)), `out_scale` E8M0 (rows, ceil(cols / 32))."""
    kernel = mxfp4.quantize_mxfp4(dtype, rule)

    def work(p: Piece) -> None:
        places = p.at(out, 2, 1), p.at(out_scale, 32, 1)
        kernel(p.address, *places, p.rows, p.cols, p.row_stride)

    run(work, split(_matrix(src, dtype, rows, cols, row_stride), 1, 32), threads)


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
    """One scale for all codes: `out` (rows, cols) of `dtype`."""
    kernel = fp8.dequantize_fp8(element, dtype)

    def work(p: Piece) -> None:
        kernel(p.at(data, 1, 1), scale_inv, p.at(out, 1, SOURCES[dtype].nbytes), p.rows, p.cols)

    run(work, split(_compact(rows, cols)), threads)


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
    """One scale per row, fp32 (rows, 1)."""
    kernel = fp8.dequantize_fp8_rows(element, dtype)

    def work(p: Piece) -> None:
        scales = scale_inv + 4 * p.first_row
        kernel(p.at(data, 1, 1), scales, p.at(out, 1, SOURCES[dtype].nbytes), p.rows, p.cols)

    run(work, split(_compact(rows, cols), 1, cols + 1), threads)


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
    """One scale per (block_rows, 128) block, fp32."""
    kernel = fp8_block.dequantize_fp8_block(element, block_rows, dtype)

    def work(p: Piece) -> None:
        scales = p.at(scale_inv, 128, 4, block_rows)
        kernel(p.at(data, 1, 1), scales, p.at(out, 1, SOURCES[dtype].nbytes), p.rows, p.cols)

    run(work, split(_compact(rows, cols), block_rows, 128), threads)


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
    """One E8M0 scale per (block_rows, block_cols) block."""
    if block_cols == 1:
        kernel = mxfp8.dequantize_mxfp8_columns(element, dtype)
    else:
        kernel = mxfp8.dequantize_mxfp8_rows(element, block_rows, dtype)

    def work(p: Piece) -> None:
        scales = p.at(scale, block_cols, 1, block_rows)
        kernel(p.at(data, 1, 1), scales, p.at(out, 1, SOURCES[dtype].nbytes), p.rows, p.cols)

    run(work, split(_compact(rows, cols), block_rows, block_cols), threads)


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
    """Packed codes (rows, ceil(cols / 2)) with E4M3 scales (rows, ceil(cols / 16)) and one amax."""
    kernel = nvfp4.dequantize_nvfp4(dtype)
    given = ctypes.c_float(amax)

    def work(p: Piece) -> None:
        places = p.at(data, 2, 1), p.at(scale, 16, 1)
        full = ctypes.addressof(given), 0, 6.0 * e4m3_max
        kernel(*places, *full, p.at(out, 1, SOURCES[dtype].nbytes), p.rows, p.cols)

    run(work, split(_compact(rows, cols), 1, 16), threads)


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
    """The same with one amax per row, fp32 (rows) at the address `amax`."""
    kernel = nvfp4.dequantize_nvfp4(dtype)

    def work(p: Piece) -> None:
        places = p.at(data, 2, 1), p.at(scale, 16, 1)
        full = amax + 4 * p.first_row, 4, 6.0 * e4m3_max
        kernel(*places, *full, p.at(out, 1, SOURCES[dtype].nbytes), p.rows, p.cols)

    run(work, split(_compact(rows, cols), 1, cols + 1), threads)


def host_dequantize_mxfp4(
    data: int, rows: int, cols: int, scale: int, dtype: str, out: int, *, threads: int = 0
) -> None:
    """Packed codes (rows, ceil(cols / 2)) with E8M0 scales (rows, ceil(cols / 32))."""
    kernel = mxfp4.dequantize_mxfp4(dtype)

    def work(p: Piece) -> None:
        places = p.at(data, 2, 1), p.at(scale, 32, 1), p.at(out, 1, SOURCES[dtype].nbytes)
        kernel(*places, p.rows, p.cols)

    run(work, split(_compact(rows, cols), 1, 32), threads)


def host_hadamard16(
    src: int, rows: int, cols: int, sign_mask: int, out: int, *, threads: int = 0
) -> None:
    """Transforms groups of 16 along the rows of a contiguous bf16 matrix; `cols` is a multiple of 16."""
    kernel = hadamard.hadamard16()

    def work(p: Piece) -> None:
        kernel(p.at(src, 1, 2), p.at(out, 1, 2), sign_mask, p.rows, p.cols)

    run(work, split(_compact(rows, cols), 1, 16), threads)
