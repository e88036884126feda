"""Quantization on the torch reference, over raw memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from qrole_kernels import reference
from qrole_kernels.cpu.fallback.memory import (
    ceil_div,
    contiguous,
    floats,
    lines,
    matrix,
    portions,
    raw_bytes,
)


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
    """As in `host`."""
    x = matrix(src, dtype, rows, cols, row_stride, col_stride)
    parts = list(portions(rows, cols))
    if keep_nan and any(bool(x[part].isnan().any()) for part in parts):
        return math.nan
    return max((float(reference.amax(x[part])) for part in parts), default=0.0)


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
    """As in `host`."""
    x = matrix(src, dtype, rows, cols, row_stride, col_stride)
    found = floats(out, rows)
    for part in portions(rows, cols):
        found[part, 0] = reference.amax_rows(x[part])


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
    """As in `host`."""
    x = matrix(src, dtype, rows, cols, row_stride, col_stride)
    codes, factor = raw_bytes(out, rows, cols), torch.tensor(scale)
    for part in portions(rows, cols):
        codes[part] = reference.quantize_fp8(x[part], factor, element)


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
    """As in `host`."""
    x = matrix(src, dtype, rows, cols, row_stride, col_stride)
    codes, scales = raw_bytes(out, rows, cols), floats(out_scale_inv, rows)
    for part in portions(rows, cols):
        codes[part], scales[part] = reference.quantize_fp8_rows(x[part], element)


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
    """As in `host`."""
    x = matrix(src, dtype, rows, cols, row_stride, col_stride)
    codes = raw_bytes(out, rows, cols)
    scales = floats(out_scale_inv, ceil_div(rows, block_rows), ceil_div(cols, 128))
    for part in portions(rows, cols):
        codes[part], scales[lines(part, block_rows)] = reference.quantize_fp8_block(
            x[part], element, block_rows, power_of_two, epsilon
        )


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
    """As in `host`."""
    x = matrix(src, dtype, rows, cols, row_stride, col_stride)
    codes = raw_bytes(out, rows, cols)
    scales = raw_bytes(out_scale, ceil_div(rows, block_rows), ceil_div(cols, block_cols))
    for part in portions(rows, cols):
        codes[part], scales[lines(part, block_rows)] = reference.quantize_mxfp8(
            x[part], element, block_rows, block_cols
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
    """As in `host`."""
    x = matrix(src, dtype, rows, cols, row_stride, col_stride)
    largest = torch.tensor(amax)
    _nvfp4(
        x, lambda part: largest, block_rows, e4m3_max, four_over_six, (random_bits, out, out_scale)
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
    four_over_six: str = "",
    random_bits: int = 0,
    col_stride: int = 1,
    threads: int = 0,
) -> None:
    """As in `host`."""
    x = matrix(src, dtype, rows, cols, row_stride, col_stride)
    largest = floats(amax, rows)[:, 0]
    _nvfp4(x, lambda part: largest[part], 1, e4m3_max, four_over_six, (random_bits, out, out_scale))


def _nvfp4(
    x: Tensor,
    amax_of: Callable[[slice], Tensor],
    block_rows: int,
    e4m3_max: int,
    four_over_six: str,
    places: tuple[int, int, int],
) -> None:
    (rows, cols), (random, out, scale) = x.shape, places
    bits = raw_bytes(random, rows, cols) if random else None
    codes = raw_bytes(out, rows, ceil_div(cols, 2))
    scales = raw_bytes(scale, rows, ceil_div(cols, 16))
    for part in portions(rows, cols):
        chosen = None if bits is None else bits[part]
        codes[part], scales[part] = reference.quantize_nvfp4(
            x[part], amax_of(part), block_rows, e4m3_max, four_over_six, chosen
        )


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
    """As in `host`."""
    x = matrix(src, dtype, rows, cols, row_stride, col_stride)
    codes = raw_bytes(out, rows, ceil_div(cols, 2))
    scales = raw_bytes(out_scale, rows, ceil_div(cols, 32))
    for part in portions(rows, cols):
        codes[part], scales[part] = reference.quantize_mxfp4(x[part], rule)


def host_hadamard16(
    src: int, rows: int, cols: int, sign_mask: int, out: int, *, threads: int = 0
) -> None:
    """As in `host`."""
    given, found = (contiguous(place, torch.bfloat16, rows, cols) for place in (src, out))
    for part in portions(rows, cols):
        found[part] = reference.hadamard16(given[part], sign_mask)
