"""Memory at an address as torch tensors, and portions of rows that keep temporaries small."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch
from torch import Tensor

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_PORTION = 1 << 22
_TALLEST_BLOCK = 128


def view(
    address: int, dtype: torch.dtype, rows: int, cols: int, row_stride: int, col_stride: int = 1
) -> Tensor:
    """The matrix (rows, cols) at an address; strides are in elements."""
    if not rows or not cols:
        return torch.empty(rows, cols, dtype=dtype)
    count = (rows - 1) * row_stride + (cols - 1) * col_stride + 1
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided((rows, cols), (row_stride, col_stride))


def matrix(src: int, dtype: str, rows: int, cols: int, row_stride: int, col_stride: int) -> Tensor:
    """The input of quantization."""
    return view(src, DTYPES[dtype], rows, cols, row_stride, col_stride)


def contiguous(address: int, dtype: torch.dtype, rows: int, cols: int) -> Tensor:
    """A matrix without gaps."""
    return view(address, dtype, rows, cols, cols)


def raw_bytes(address: int, rows: int, cols: int) -> Tensor:
    """Codes or scale bytes."""
    return contiguous(address, torch.uint8, rows, cols)


def floats(address: int, rows: int, cols: int = 1) -> Tensor:
    """Scales or maxima in fp32."""
    return contiguous(address, torch.float32, rows, cols)


def ceil_div(a: int, b: int) -> int:
    """The number of blocks of `b` that cover `a`."""
    return -(-a // b)


def portions(rows: int, cols: int) -> Iterator[slice]:
    """Rows that are worked on together, in whole blocks."""
    step = max(1, _PORTION // max(1, cols * _TALLEST_BLOCK)) * _TALLEST_BLOCK
    for first in range(0, rows, step):
        yield slice(first, min(first + step, rows))


def lines(portion: slice, block_rows: int) -> slice:
    """The rows of block scales that belong to a portion."""
    return slice(portion.start // block_rows, ceil_div(portion.stop, block_rows))
