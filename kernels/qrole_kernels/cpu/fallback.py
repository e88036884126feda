"""The functions of `host`, on the torch reference: same memory, same results, much slower.

Used where llvmlite is not installed. Matrices are worked on in portions of rows, so that memory
stays bounded; `threads` has no effect, torch uses its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch
from torch import Tensor

from qrole_kernels import reference

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_PORTION = 1 << 22
_TALLEST_BLOCK = 128


def _view(
    address: int, dtype: torch.dtype, rows: int, cols: int, row_stride: int, col_stride: int = 1
) -> Tensor:
    if not rows or not cols:
        return torch.empty(rows, cols, dtype=dtype)
    count = (rows - 1) * row_stride + (cols - 1) * col_stride + 1
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided((rows, cols), (row_stride, col_stride))


def _matrix(src: int, dtype: str, rows: int, cols: int, row_stride: int, col_stride: int) -> Tensor:
    return _view(src, _DTYPES[dtype], rows, cols, row_stride, col_stride)


def _compact(address: int, dtype: torch.dtype, rows: int, cols: int) -> Tensor:
    return _view(address, dtype, rows, cols, cols)


def _bytes(address: int, rows: int, cols: int) -> Tensor:
    return _compact(address, torch.uint8, rows, cols)


def _floats(address: int, rows: int, cols: int = 1) -> Tensor:
    return _compact(address, torch.float32, rows, cols)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _portions(rows: int, cols: int) -> Iterator[slice]:
    step = max(1, _PORTION // max(1, cols * _TALLEST_BLOCK)) * _TALLEST_BLOCK
    for first in range(0, rows, step):
        yield slice(first, min(first + step, rows))


def _lines(portion: slice, block_rows: int) -> slice:
    return slice(portion.start // block_rows, _ceil(portion.stop, block_rows))


def host_amax(
    src: int,
    dtype: str,
    rows: int,
    cols: int,
    row_stride: int,
    *,
    col_stride: int = 1,
    threads: int = 0,
) -> float:
    """As in `host`."""
    x = _matrix(src, dtype, rows, cols, row_stride, col_stride)
    parts = _portions(rows, cols)
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
    x = _matrix(src, dtype, rows, cols, row_stride, col_stride)
    found = _floats(out, rows)
    for part in _portions(rows, cols):
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
    x = _matrix(src, dtype, rows, cols, row_stride, col_stride)
    codes, factor = _bytes(out, rows, cols), torch.tensor(scale)
    for part in _portions(rows, cols):
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
    x = _matrix(src, dtype, rows, cols, row_stride, col_stride)
    codes, scales = _bytes(out, rows, cols), _floats(out_scale_inv, rows)
    for part in _portions(rows, cols):
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
    x = _matrix(src, dtype, rows, cols, row_stride, col_stride)
    codes = _bytes(out, rows, cols)
    scales = _floats(out_scale_inv, _ceil(rows, block_rows), _ceil(cols, 128))
    for part in _portions(rows, cols):
        codes[part], scales[_lines(part, block_rows)] = reference.quantize_fp8_block(
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
    x = _matrix(src, dtype, rows, cols, row_stride, col_stride)
    codes = _bytes(out, rows, cols)
    scales = _bytes(out_scale, _ceil(rows, block_rows), _ceil(cols, block_cols))
    for part in _portions(rows, cols):
        codes[part], scales[_lines(part, block_rows)] = reference.quantize_mxfp8(
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
    col_stride: int = 1,
    threads: int = 0,
) -> None:
    """As in `host`."""
    x = _matrix(src, dtype, rows, cols, row_stride, col_stride)
    codes, scales = _bytes(out, rows, _ceil(cols, 2)), _bytes(out_scale, rows, _ceil(cols, 16))
    largest = torch.tensor(amax)
    for part in _portions(rows, cols):
        codes[part], scales[part] = reference.quantize_nvfp4(x[part], largest, block_rows, e4m3_max)


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
    col_stride: int = 1,
    threads: int = 0,
) -> None:
    """As in `host`."""
    x = _matrix(src, dtype, rows, cols, row_stride, col_stride)
    codes, scales = _bytes(out, rows, _ceil(cols, 2)), _bytes(out_scale, rows, _ceil(cols, 16))
    largest = _floats(amax, rows)[:, 0]
    for part in _portions(rows, cols):
        codes[part], scales[part] = reference.quantize_nvfp4(x[part], largest[part], 1, e4m3_max)


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
    x = _matrix(src, dtype, rows, cols, row_stride, col_stride)
    codes, scales = _bytes(out, rows, _ceil(cols, 2)), _bytes(out_scale, rows, _ceil(cols, 32))
    for part in _portions(rows, cols):
        codes[part], scales[part] = reference.quantize_mxfp4(x[part], rule)


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
    codes, factor = _bytes(data, rows, cols), torch.tensor(scale_inv)
    values = _compact(out, _DTYPES[dtype], rows, cols)
    for part in _portions(rows, cols):
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
    codes, scales = _bytes(data, rows, cols), _floats(scale_inv, rows)
    values = _compact(out, _DTYPES[dtype], rows, cols)
    for part in _portions(rows, cols):
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
    codes = _bytes(data, rows, cols)
    scales = _floats(scale_inv, _ceil(rows, block_rows), _ceil(cols, 128))
    values = _compact(out, _DTYPES[dtype], rows, cols)
    for part in _portions(rows, cols):
        values[part] = reference.dequantize_fp8_block(
            codes[part], scales[_lines(part, block_rows)], element, block_rows, values.dtype
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
    codes = _bytes(data, rows, cols)
    scales = _bytes(scale, _ceil(rows, block_rows), _ceil(cols, block_cols))
    values = _compact(out, _DTYPES[dtype], rows, cols)
    for part in _portions(rows, cols):
        values[part] = reference.dequantize_mxfp8(
            codes[part],
            scales[_lines(part, block_rows)],
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
    codes, scales = _bytes(data, rows, _ceil(cols, 2)), _bytes(scale, rows, _ceil(cols, 16))
    largest = torch.tensor(amax)
    values = _compact(out, _DTYPES[dtype], rows, cols)
    for part in _portions(rows, cols):
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
    codes, scales = _bytes(data, rows, _ceil(cols, 2)), _bytes(scale, rows, _ceil(cols, 16))
    largest = _floats(amax, rows)[:, 0]
    values = _compact(out, _DTYPES[dtype], rows, cols)
    for part in _portions(rows, cols):
        found = reference.dequantize_nvfp4(
            codes[part], scales[part], largest[part], e4m3_max, values.dtype
        )
        values[part] = found[:, :cols]


def host_dequantize_mxfp4(
    data: int, rows: int, cols: int, scale: int, dtype: str, out: int, *, threads: int = 0
) -> None:
    """As in `host`."""
    codes, scales = _bytes(data, rows, _ceil(cols, 2)), _bytes(scale, rows, _ceil(cols, 32))
    values = _compact(out, _DTYPES[dtype], rows, cols)
    for part in _portions(rows, cols):
        found = reference.dequantize_mxfp4(codes[part], scales[part], values.dtype)
        values[part] = found[:, :cols]


def host_hadamard16(
    src: int, rows: int, cols: int, sign_mask: int, out: int, *, threads: int = 0
) -> None:
    """As in `host`."""
    given, found = (_compact(place, torch.bfloat16, rows, cols) for place in (src, out))
    for part in _portions(rows, cols):
        found[part] = reference.hadamard16(given[part], sign_mask)
