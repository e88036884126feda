"""The CPU kernels on torch tensors: checks, allocation, and pointers for `qrole_kernels.cpu`.

Signatures are those of `qrole_kernels.reference`; what is missing here has no CPU kernel.
"""

from typing import Any

import torch
from torch import Tensor

from qrole_kernels import cpu, reference
from qrole_kernels.cpu_layout import row_major
from qrole_kernels.cpu_matmul import matmul_f32, matmul_fp8_block
from qrole_kernels.formats import fp8_format
from qrole_kernels.reference.arguments import check_choice, check_matrix, check_shape
from qrole_kernels.reference.blocks import ceil_div
from qrole_kernels.reference.hadamard import SIGN_MASK, check_transformable
from qrole_kernels.reference.mxfp4 import RULES
from qrole_kernels.reference.mxfp8 import BLOCKS
from qrole_kernels.reference.nvfp4 import check_amax

__all__ = [
    "amax",
    "amax_rows",
    "dequantize_fp8",
    "dequantize_fp8_block",
    "dequantize_fp8_rows",
    "dequantize_mxfp4",
    "dequantize_mxfp8",
    "dequantize_nvfp4",
    "hadamard16",
    "matmul_f32",
    "matmul_fp8_block",
    "quantize_fp8",
    "quantize_fp8_block",
    "quantize_fp8_current",
    "quantize_fp8_rows",
    "quantize_mxfp4",
    "quantize_mxfp8",
    "quantize_nvfp4",
]

_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def _readable(x: Tensor) -> Tensor:
    """The matrix itself where its rows or its columns are contiguous, else a copy."""
    check_matrix(x)
    rows, cols = x.shape
    row_stride, col_stride = x.stride()
    is_row_major = (cols <= 1 or col_stride == 1) and (rows <= 1 or row_stride >= cols)
    is_column_major = row_stride == 1 and col_stride >= rows
    return x if is_row_major or is_column_major else x.contiguous()


def _source(x: Tensor) -> tuple[int, str, int, int, int]:
    """Address, dtype, rows, columns and row stride, as the kernels take them."""
    return x.data_ptr(), _NAMES[x.dtype], x.shape[0], x.shape[1], x.stride(0)


def _bytes(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.uint8)


def amax(x: Tensor) -> Tensor:
    """See `qrole_kernels.reference.amax`."""
    x = _readable(x)
    return torch.tensor(cpu.host_amax(*_source(x), col_stride=x.stride(1)), dtype=torch.float32)


def amax_rows(x: Tensor) -> Tensor:
    """See `qrole_kernels.reference.amax_rows`."""
    x = _readable(x)
    found = torch.empty(x.shape[0])
    cpu.host_amax_rows(*_source(x), found.data_ptr(), col_stride=x.stride(1))
    return found


def quantize_fp8(x: Tensor, scale: Tensor, element: str) -> Tensor:
    """See `qrole_kernels.reference.quantize_fp8`."""
    fp8_format(element)
    x, data = _readable(x), _bytes(*x.shape)
    cpu.host_quantize_fp8(
        *_source(x), scale.item(), element, data.data_ptr(), col_stride=x.stride(1)
    )
    return data


def quantize_fp8_current(
    x: Tensor, element: str, power_of_two: bool = False, epsilon: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `qrole_kernels.reference.quantize_fp8_current`."""
    x = _readable(x)
    largest = amax(x)
    float32_max = torch.finfo(torch.float32).max
    scale = reference.fp8_scale(largest, element, power_of_two, epsilon, float32_max)
    return quantize_fp8(x, scale, element), scale, 1.0 / scale, largest


def quantize_fp8_rows(x: Tensor, element: str) -> tuple[Tensor, Tensor]:
    """See `qrole_kernels.reference.quantize_fp8_rows`."""
    fp8_format(element)
    x, data = _readable(x), _bytes(*x.shape)
    scale_inv = torch.empty(x.shape[0], 1)
    cpu.host_quantize_fp8_rows(
        *_source(x), element, data.data_ptr(), scale_inv.data_ptr(), col_stride=x.stride(1)
    )
    return data, scale_inv


def quantize_fp8_block(
    x: Tensor, element: str, block_rows: int, power_of_two: bool = True, epsilon: float = 0.0
) -> tuple[Tensor, Tensor]:
    """See `qrole_kernels.reference.quantize_fp8_block`."""
    fp8_format(element)
    check_choice("block_rows", block_rows, (1, 128))
    x, data = _readable(x), _bytes(*x.shape)
    scale_inv = torch.empty(ceil_div(x.shape[0], block_rows), ceil_div(x.shape[1], 128))
    options = element, block_rows, power_of_two, epsilon
    cpu.host_quantize_fp8_block(
        *_source(x), *options, data.data_ptr(), scale_inv.data_ptr(), col_stride=x.stride(1)
    )
    return data, scale_inv


def quantize_mxfp8(
    x: Tensor, element: str, block_rows: int, block_cols: int
) -> tuple[Tensor, Tensor]:
    """See `qrole_kernels.reference.quantize_mxfp8`."""
    fp8_format(element)
    check_choice("(block_rows, block_cols)", (block_rows, block_cols), BLOCKS)
    x, data = _readable(x), _bytes(*x.shape)
    scale = _bytes(ceil_div(x.shape[0], block_rows), ceil_div(x.shape[1], block_cols))
    options = element, block_rows, block_cols
    cpu.host_quantize_mxfp8(
        *_source(x), *options, data.data_ptr(), scale.data_ptr(), col_stride=x.stride(1)
    )
    return data, scale


def quantize_nvfp4(
    x: Tensor,
    amax: Tensor,
    block_rows: int,
    e4m3_max: int = 448,
    four_over_six: str = "",
    random_bits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `qrole_kernels.reference.quantize_nvfp4`."""
    check_choice("block_rows", block_rows, (1, 16))
    check_choice("e4m3_max", e4m3_max, (448, 256))
    check_amax(amax, x.shape[0], block_rows)
    x, packed = _readable(x), _bytes(x.shape[0], ceil_div(x.shape[1], 2))
    scale = _bytes(x.shape[0], ceil_div(x.shape[1], 16))
    out = packed.data_ptr(), scale.data_ptr()
    if random_bits is not None:
        check_shape("random_bits", random_bits, tuple(x.shape))
        random_bits = random_bits.contiguous()
    options: dict[str, Any] = {
        "four_over_six": four_over_six,
        "random_bits": 0 if random_bits is None else random_bits.data_ptr(),
        "col_stride": x.stride(1),
    }
    if amax.dim() == 0:
        cpu.host_quantize_nvfp4(*_source(x), amax.item(), block_rows, e4m3_max, *out, **options)
    else:
        per_row = amax.contiguous()
        cpu.host_quantize_nvfp4_rows(*_source(x), per_row.data_ptr(), e4m3_max, *out, **options)
    return packed, scale


def quantize_mxfp4(x: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """See `qrole_kernels.reference.quantize_mxfp4`."""
    check_choice("rule", rule, RULES)
    x, packed = _readable(x), _bytes(x.shape[0], ceil_div(x.shape[1], 2))
    scale = _bytes(x.shape[0], ceil_div(x.shape[1], 32))
    cpu.host_quantize_mxfp4(
        *_source(x), rule, packed.data_ptr(), scale.data_ptr(), col_stride=x.stride(1)
    )
    return packed, scale


def _codes(data: Tensor) -> tuple[int, int, int]:
    """Address, rows and columns of a contiguous matrix."""
    return data.data_ptr(), data.shape[0], data.shape[1]


def _output(rows: int, cols: int, dtype: torch.dtype) -> tuple[Tensor, str]:
    """The result of a decoding and its dtype's name."""
    check_choice("dtype", dtype, tuple(_NAMES))
    return torch.empty(rows, cols, dtype=dtype), _NAMES[dtype]


def dequantize_fp8(data: Tensor, scale_inv: Tensor, element: str, dtype: torch.dtype) -> Tensor:
    """See `qrole_kernels.reference.dequantize_fp8`."""
    fp8_format(element)
    data = data.contiguous()
    y, name = _output(data.shape[0], data.shape[1], dtype)
    cpu.host_dequantize_fp8(*_codes(data), scale_inv.item(), element, name, y.data_ptr())
    return y


def dequantize_fp8_rows(
    data: Tensor, scale_inv: Tensor, element: str, dtype: torch.dtype
) -> Tensor:
    """See `qrole_kernels.reference.dequantize_fp8_rows`."""
    fp8_format(element)
    check_shape("scale_inv", scale_inv, (data.shape[0], 1))
    data, scale_inv = data.contiguous(), scale_inv.contiguous()
    y, name = _output(data.shape[0], data.shape[1], dtype)
    cpu.host_dequantize_fp8_rows(*_codes(data), scale_inv.data_ptr(), element, name, y.data_ptr())
    return y


def dequantize_fp8_block(
    data: Tensor, scale_inv: Tensor, element: str, block_rows: int, dtype: torch.dtype
) -> Tensor:
    """See `qrole_kernels.reference.dequantize_fp8_block`."""
    fp8_format(element)
    check_choice("block_rows", block_rows, (1, 128))
    blocks = ceil_div(data.shape[0], block_rows), ceil_div(data.shape[1], 128)
    check_shape("scale_inv", scale_inv, blocks)
    data, scale_inv = data.contiguous(), scale_inv.contiguous()
    y, name = _output(data.shape[0], data.shape[1], dtype)
    cpu.host_dequantize_fp8_block(
        *_codes(data), scale_inv.data_ptr(), element, block_rows, name, y.data_ptr()
    )
    return y


def dequantize_mxfp8(
    data: Tensor,
    scale: Tensor,
    element: str,
    block_rows: int,
    block_cols: int,
    dtype: torch.dtype,
) -> Tensor:
    """See `qrole_kernels.reference.dequantize_mxfp8`."""
    fp8_format(element)
    check_choice("(block_rows, block_cols)", (block_rows, block_cols), BLOCKS)
    blocks = ceil_div(data.shape[0], block_rows), ceil_div(data.shape[1], block_cols)
    check_shape("scale", scale, blocks)
    data, scale = data.contiguous(), scale.contiguous()
    y, name = _output(data.shape[0], data.shape[1], dtype)
    cpu.host_dequantize_mxfp8(
        *_codes(data), scale.data_ptr(), element, block_rows, block_cols, name, y.data_ptr()
    )
    return y


def dequantize_nvfp4(
    packed: Tensor, scale: Tensor, amax: Tensor, e4m3_max: int, dtype: torch.dtype
) -> Tensor:
    """See `qrole_kernels.reference.dequantize_nvfp4`."""
    rows, cols = packed.shape[0], 2 * packed.shape[1]
    check_choice("e4m3_max", e4m3_max, (448, 256))
    check_shape("scale", scale, (rows, ceil_div(cols, 16)))
    check_amax(amax, rows, 1)
    packed, scale, amax = packed.contiguous(), scale.contiguous(), amax.contiguous()
    y, name = _output(rows, cols, dtype)
    codes, rest = (packed.data_ptr(), rows, cols, scale.data_ptr()), (e4m3_max, name, y.data_ptr())
    if amax.dim() == 0:
        cpu.host_dequantize_nvfp4(*codes, amax.item(), *rest)
    else:
        cpu.host_dequantize_nvfp4_rows(*codes, amax.data_ptr(), *rest)
    return y


def dequantize_mxfp4(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """See `qrole_kernels.reference.dequantize_mxfp4`."""
    rows, cols = packed.shape[0], 2 * packed.shape[1]
    check_shape("scale", scale, (rows, ceil_div(cols, 32)))
    packed, scale = packed.contiguous(), scale.contiguous()
    y, name = _output(rows, cols, dtype)
    cpu.host_dequantize_mxfp4(packed.data_ptr(), rows, cols, scale.data_ptr(), name, y.data_ptr())
    return y


def hadamard16(x: Tensor, sign_mask: int = SIGN_MASK) -> Tensor:
    """See `qrole_kernels.reference.hadamard16`."""
    check_transformable(x)
    x = row_major(x)
    y = torch.empty_like(x)
    cpu.host_hadamard16(*_codes(x), sign_mask, y.data_ptr())
    return y
