"""FP8 with one fp32 scale per tensor or per row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from qrole_kernels.cuda.amax import amax as tensor_amax
from qrole_kernels.cuda.amax import amax_rows
from qrole_kernels.cuda.decode import WHOLE, decode_fp8_data
from qrole_kernels.cuda.launch import architecture, launch
from qrole_kernels.cuda.rounding import encode_fp8, scale_of_amax
from qrole_kernels.cuda.tiles import (
    Tile,
    column_major,
    load_amax,
    load_tile,
    matrix_arguments,
    store_tile,
    tile_origin,
    widen,
)
from qrole_kernels.formats import fp8_format
from qrole_kernels.reference.arguments import check_matrix, check_shape
from qrole_kernels.reference.blocks import ceil_div

SCALES_PER_PROGRAM = 256


@triton.jit
def fp8_scale_kernel(
    amax,
    scale,
    count,
    epsilon,
    value_for_inf,
    MAX: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
    SIZE: tl.constexpr,
):
    """``scale[i]`` of ``amax[i]``, both fp32 (count,)."""
    index = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = index < count
    value = tl.load(amax + index, mask=inside, other=0.0)
    result = scale_of_amax(value, MAX, POWER_OF_TWO, epsilon, value_for_inf)
    tl.store(scale + index, result, mask=inside)


@triton.jit
def fp8_cast_kernel(
    x,
    data,
    scale,
    M,
    K,
    stride_m,
    stride_k,
    ELEMENT: tl.constexpr,
    ARCH: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLS: tl.constexpr,
):
    """Codes of ``x * scale``, a given fp32 scalar."""
    row0, col0 = tile_origin(K, TILE_ROWS, TILE_COLS)
    tile = widen(load_tile(x, row0, col0, M, K, stride_m, stride_k, TILE_ROWS, TILE_COLS))
    store_tile(data, encode_fp8(tile * tl.load(scale), ELEMENT, ARCH), row0, col0, M, K)


@triton.jit
def fp8_quantize_kernel(
    x,
    data,
    amax,
    scale,
    scale_inv,
    M,
    K,
    stride_m,
    stride_k,
    epsilon,
    ELEMENT: tl.constexpr,
    MAX: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
    VALUE_FOR_INF: tl.constexpr,
    PER_ROW: tl.constexpr,
    ARCH: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLS: tl.constexpr,
):
    """Codes of ``x`` scaled by its ``amax``, of the tensor or of each row; stores the scales."""
    row0, col0 = tile_origin(K, TILE_ROWS, TILE_COLS)
    largest = load_amax(amax, row0, M, PER_ROW, TILE_ROWS)
    factor = scale_of_amax(largest, MAX, POWER_OF_TWO, epsilon, VALUE_FOR_INF)
    if PER_ROW:
        scales = row0 + tl.arange(0, TILE_ROWS)
        first = scales < tl.where(col0 == 0, M, 0)
    else:
        scales = tl.program_id(0) + tl.arange(0, 1)
        first = scales == 0
    tl.store(scale + scales, factor, mask=first)
    tl.store(scale_inv + scales, tl.math.div_rn(1.0, factor), mask=first)
    tile = widen(load_tile(x, row0, col0, M, K, stride_m, stride_k, TILE_ROWS, TILE_COLS))
    store_tile(data, encode_fp8(tile * factor[:, None], ELEMENT, ARCH), row0, col0, M, K)


def fp8_scale(
    amax: Tensor, element: str, power_of_two: bool, epsilon: float, value_for_inf: float
) -> Tensor:
    """Scale that maps fp32 ``amax`` to the largest value of the element format, elementwise."""
    largest = fp8_format(element).max
    source = amax.contiguous()
    scale = torch.empty_like(source)
    launch(
        fp8_scale_kernel,
        ceil_div(source.numel(), SCALES_PER_PROGRAM),
        {
            "amax": source,
            "scale": scale,
            "count": source.numel(),
            "epsilon": float(epsilon),
            "value_for_inf": float(value_for_inf),
        },
        {
            "MAX": largest,
            "POWER_OF_TWO": power_of_two,
            "SIZE": SCALES_PER_PROGRAM,
        },
    )
    return scale


def _tile(x: Tensor) -> Tile:
    return Tile(128, 64) if column_major(x) else Tile(32, 128)


def quantize_fp8(x: Tensor, scale: Tensor, element: str) -> Tensor:
    """Cast (M, K) with a given fp32 scale (a scalar): codes uint8 (M, K) of ``x * scale``."""
    check_matrix(x)
    fp8_format(element)
    arch = architecture(x.device)
    data = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    tile = _tile(x)
    launch(
        fp8_cast_kernel,
        tile.programs(*x.shape),
        matrix_arguments(x) | {"data": data, "scale": scale.reshape(())},
        tile.constants() | {"ELEMENT": element, "ARCH": arch},
    )
    return data


def _quantize(
    x: Tensor, amax: Tensor, element: str, power_of_two: bool, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes (M, K), scale and 1/scale of the shape of ``amax``: a scalar, or (M,)."""
    arch = architecture(x.device)
    data = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    scale, scale_inv = torch.empty_like(amax), torch.empty_like(amax)
    tile = _tile(x)
    outputs = {"data": data, "amax": amax, "scale": scale, "scale_inv": scale_inv}
    launch(
        fp8_quantize_kernel,
        # The scale of an empty matrix is stored as well.
        max(1, tile.programs(*x.shape)),
        matrix_arguments(x) | outputs | {"epsilon": float(epsilon)},
        tile.constants()
        | {
            "ELEMENT": element,
            "MAX": fp8_format(element).max,
            "POWER_OF_TWO": power_of_two,
            "VALUE_FOR_INF": torch.finfo(torch.float32).max,
            "PER_ROW": amax.dim() == 1,
            "ARCH": arch,
        },
    )
    return data, scale, scale_inv


def quantize_fp8_current(
    x: Tensor, element: str, power_of_two: bool = False, epsilon: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Quantize (M, K) with the scale of its own amax.

    Returns:
        Codes uint8 (M, K), and the fp32 scalars scale, 1/scale and amax (before the epsilon floor).
    """
    fp8_format(element)
    amax = tensor_amax(x)
    return *_quantize(x, amax, element, power_of_two, epsilon), amax


def quantize_fp8_rows(x: Tensor, element: str) -> tuple[Tensor, Tensor]:
    """Quantize each row of (M, K) with the scale of its own amax.

    Returns:
        Codes uint8 (M, K), 1/scale fp32 (M, 1).
    """
    fp8_format(element)
    data, _, scale_inv = _quantize(x, amax_rows(x), element, False, 0.0)
    return data, scale_inv[:, None]


def dequantize_fp8(data: Tensor, scale_inv: Tensor, element: str, dtype: torch.dtype) -> Tensor:
    """Decode codes (M, K) with one scale: fp32 product, one rounding to ``dtype``."""
    return decode_fp8_data(data, scale_inv.reshape(1, 1), element, (WHOLE, WHOLE), dtype)


def dequantize_fp8_rows(
    data: Tensor, scale_inv: Tensor, element: str, dtype: torch.dtype
) -> Tensor:
    """Decode codes (M, K) with one scale per row, fp32 (M, 1)."""
    check_shape("scale_inv", scale_inv, (data.shape[0], 1))
    return decode_fp8_data(data, scale_inv, element, (1, WHOLE), dtype)
