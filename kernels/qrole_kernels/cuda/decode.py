"""Decoding: codes and block scales of any format back to fp32, bf16 or fp16."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from qrole_kernels.cuda.launch import DTYPE_NAMES, architecture, launch
from qrole_kernels.cuda.rounding import (
    decode_e2m1_pairs,
    decode_e8m0,
    decode_fp8,
    to_output,
)
from qrole_kernels.cuda.tiles import (
    Tile,
    as_blocks,
    column_major,
    from_blocks,
    load_amax,
    load_tile,
    matrix_arguments,
    over_block,
    store_tile,
    tile_origin,
)
from qrole_kernels.formats import fp8_format
from qrole_kernels.reference.arguments import check_choice

WHOLE = 0
"""As a block extent: one scale for all of the dimension."""


@triton.jit
def _first_block(origin, BLOCK: tl.constexpr):
    if BLOCK == 0:
        first = 0
    else:
        first = origin // BLOCK
    return first


@triton.jit
def decode_fp8_kernel(
    x,
    scale,
    out,
    M,
    K,
    stride_m,
    stride_k,
    scale_m,
    scale_k,
    scale_stride_m,
    scale_stride_k,
    ELEMENT: tl.constexpr,
    OUTPUT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    SPAN_ROWS: tl.constexpr,
    SPAN_COLS: tl.constexpr,
    ARCH: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLS: tl.constexpr,
):
    """``out`` of FP8 codes ``x`` (M, K) and fp32 or E8M0 scales, one per block.

    SPAN is the part of a block that lies in one tile.
    """
    row0, col0 = tile_origin(K, TILE_ROWS, TILE_COLS)
    codes = load_tile(x, row0, col0, M, K, stride_m, stride_k, TILE_ROWS, TILE_COLS)
    factor = load_tile(
        scale,
        _first_block(row0, BLOCK_ROWS),
        _first_block(col0, BLOCK_COLS),
        scale_m,
        scale_k,
        scale_stride_m,
        scale_stride_k,
        TILE_ROWS // SPAN_ROWS,
        TILE_COLS // SPAN_COLS,
    )
    if factor.dtype == tl.uint8:
        factor = decode_e8m0(factor)
    value = decode_fp8(as_blocks(codes, SPAN_ROWS, SPAN_COLS), ELEMENT, ARCH) * over_block(factor)
    store_tile(out, from_blocks(to_output(value, OUTPUT, ARCH)), row0, col0, M, K)


@triton.jit
def decode_e2m1_kernel(
    x,
    scale,
    amax,
    out,
    M,
    K,
    stride_m,
    stride_k,
    scale_k,
    scale_stride_m,
    scale_stride_k,
    inverse_range,
    OUTPUT: tl.constexpr,
    BLOCK: tl.constexpr,
    PER_ROW: tl.constexpr,
    ARCH: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLS: tl.constexpr,
):
    """``out`` (M, 2K) of packed codes ``x`` (M, K) and one scale per BLOCK codes of a row.

    E8M0 scales for blocks of 32; E4M3 scales under an fp32 ``amax`` for blocks of 16. TILE_COLS
    counts bytes.
    """
    BYTES: tl.constexpr = BLOCK // 2
    row0, col0 = tile_origin(K, TILE_ROWS, TILE_COLS)
    pairs = load_tile(x, row0, col0, M, K, stride_m, stride_k, TILE_ROWS, TILE_COLS)
    pairs = tl.reshape(pairs, (TILE_ROWS, TILE_COLS // BYTES, BYTES))
    codes = load_tile(
        scale,
        row0,
        col0 // BYTES,
        M,
        scale_k,
        scale_stride_m,
        scale_stride_k,
        TILE_ROWS,
        TILE_COLS // BYTES,
    )
    if BLOCK == 16:
        largest = load_amax(amax, row0, M, PER_ROW, TILE_ROWS)
        factor = decode_fp8(codes, "e4m3", ARCH) * largest[:, None] * inverse_range
    else:
        factor = decode_e8m0(codes)
    low, high = decode_e2m1_pairs(pairs, ARCH)
    both = tl.join(low * factor[:, :, None], high * factor[:, :, None])
    value = tl.reshape(both, (TILE_ROWS, 2 * TILE_COLS))
    store_tile(out, to_output(value, OUTPUT, ARCH), row0, 2 * col0, M, 2 * K)


def decode_fp8_data(
    data: Tensor, scale: Tensor, element: str, block: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """Decode FP8 codes (M, K) with one scale per block, fp32 or E8M0 bytes.

    An extent of `block` is a power of two or `WHOLE`.
    """
    fp8_format(element)
    check_choice("dtype", dtype, tuple(DTYPE_NAMES))
    arch = architecture(data.device)
    rows, cols = data.shape
    out = torch.empty((rows, cols), dtype=dtype, device=data.device)
    tile = Tile(128, 32) if column_major(data) else Tile(32, 128)
    launch(
        decode_fp8_kernel,
        tile.programs(rows, cols),
        matrix_arguments(data)
        | {
            "scale": scale,
            "out": out,
            "scale_m": scale.shape[0],
            "scale_k": scale.shape[1],
            "scale_stride_m": scale.stride(0),
            "scale_stride_k": scale.stride(1),
        },
        tile.constants()
        | {
            "ELEMENT": element,
            "OUTPUT": DTYPE_NAMES[dtype],
            "BLOCK_ROWS": block[0],
            "BLOCK_COLS": block[1],
            "SPAN_ROWS": min(block[0] or tile.rows, tile.rows),
            "SPAN_COLS": min(block[1] or tile.cols, tile.cols),
            "ARCH": arch,
        },
    )
    return out


def decode_e2m1_data(
    packed: Tensor, scale: Tensor, amax: Tensor | None, inverse_range: float, dtype: torch.dtype
) -> Tensor:
    """Decode packed E2M1 codes (M, P) to (M, 2P).

    Args:
        packed: uint8 (M, P).
        scale: uint8, E8M0 (M, ceil(P/16)) where `amax` is None, else E4M3 (M, ceil(P/8)).
        amax: fp32 scalar or (M,).
        inverse_range: The block scale and amax are multiplied by it last.
        dtype: Of the result.
    """
    check_choice("dtype", dtype, tuple(DTYPE_NAMES))
    arch = architecture(packed.device)
    rows, cols = packed.shape
    out = torch.empty((rows, 2 * cols), dtype=dtype, device=packed.device)
    tile = Tile(128, 16) if column_major(packed) else Tile(16, 128)
    launch(
        decode_e2m1_kernel,
        tile.programs(rows, cols),
        matrix_arguments(packed)
        | {
            "scale": scale,
            # The kernel does not read what stands in for a missing amax.
            "amax": scale if amax is None else amax.contiguous(),
            "out": out,
            "scale_k": scale.shape[1],
            "scale_stride_m": scale.stride(0),
            "scale_stride_k": scale.stride(1),
            "inverse_range": inverse_range,
        },
        tile.constants()
        | {
            "OUTPUT": DTYPE_NAMES[dtype],
            "BLOCK": 32 if amax is None else 16,
            "PER_ROW": amax is not None and amax.dim() == 1,
            "ARCH": arch,
        },
    )
    return out
