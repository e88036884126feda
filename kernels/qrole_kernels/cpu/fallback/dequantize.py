"""Dequantization on the torch reference, over raw memory."""

from __future__ import annotations

import torch

from qrole_kernels import reference
from qrole_kernels.cpu.fallback.memory import (
    DTYPES,
    ceil_div,
    contiguous,
    floats,
    lines,
    portions,
    raw_bytes,
)


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
    """As in `host`."""
    codes, factor = raw_bytes(data, rows, cols), torch.tensor(scale_inv)
    values = contiguous(out, DTYPES[dtype], rows, cols)
    for part in portions(rows, cols):
        values[part] = reference.dequantize_fp8(codes[part], factor, element, values.dtype)


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
    """As in `host`."""
    codes, scales = raw_bytes(data, rows, cols), floats(scale_inv, rows)
    values = contiguous(out, DTYPES[dtype], rows, cols)
    for part in portions(rows, cols):
        values[part] = reference.dequantize_fp8_rows(
            codes[part], scales[part], element, values.dtype
        )


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
    """As in `host`."""
    codes = raw_bytes(data, rows, cols)
    scales = floats(scale_inv, ceil_div(rows, block_rows), ceil_div(cols, 128))
    values = contiguous(out, DTYPES[dtype], rows, cols)
    for part in portions(rows, cols):
        values[part] = reference.dequantize_fp8_block(
            codes[part], scales[lines(part, block_rows)], element, block_rows, values.dtype
        )


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
    """As in `host`."""
    codes = raw_bytes(data, rows, cols)
    scales = raw_bytes(scale, ceil_div(rows, block_rows), ceil_div(cols, block_cols))
    values = contiguous(out, DTYPES[dtype], rows, cols)
    for part in portions(rows, cols):
        values[part] = reference.dequantize_mxfp8(
            codes[part],
            scales[lines(part, block_rows)],
            element,
            block_rows,
            block_cols,
            values.dtype,
        )


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
    """As in `host`."""
    codes = raw_bytes(data, rows, ceil_div(cols, 2))
    scales = raw_bytes(scale, rows, ceil_div(cols, 16))
    largest = torch.tensor(amax)
    values = contiguous(out, DTYPES[dtype], rows, cols)
    for part in portions(rows, cols):
        found = reference.dequantize_nvfp4(
            codes[part], scales[part], largest, e4m3_max, values.dtype
        )
        values[part] = found[:, :cols]


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
    """As in `host`."""
    codes = raw_bytes(data, rows, ceil_div(cols, 2))
    scales = raw_bytes(scale, rows, ceil_div(cols, 16))
    largest = floats(amax, rows)[:, 0]
    values = contiguous(out, DTYPES[dtype], rows, cols)
    for part in portions(rows, cols):
        found = reference.dequantize_nvfp4(
            codes[part], scales[part], largest[part], e4m3_max, values.dtype
        )
        values[part] = found[:, :cols]


def host_dequantize_mxfp4(
    data: int, rows: int, cols: int, scale: int, dtype: str, out: int, *, threads: int = 0
) -> None:
    """As in `host`."""
    codes = raw_bytes(data, rows, ceil_div(cols, 2))
    scales = raw_bytes(scale, rows, ceil_div(cols, 32))
    values = contiguous(out, DTYPES[dtype], rows, cols)
    for part in portions(rows, cols):
        found = reference.dequantize_mxfp4(codes[part], scales[part], values.dtype)
        values[part] = found[:, :cols]
