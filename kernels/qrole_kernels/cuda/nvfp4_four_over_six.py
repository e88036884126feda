"""NVFP4 with two candidate scales per block, of which the one with the smaller error is taken."""

import triton
import triton.language as tl

from qrole_kernels.cuda.nvfp4_scales import block_factor, encode_scale, over_rows
from qrole_kernels.cuda.rounding import decode_e2m1_pairs, decode_fp8, encode_e2m1_pairs, encode_fp8
from qrole_kernels.cuda.tiles import (
    as_blocks,
    block_amax,
    from_blocks,
    load_amax,
    load_runs,
    over_block,
    split_pairs,
    store_tile,
    tile_origin,
    widen,
)


@triton.jit
def _halves(x):
    # (R, B, N) -> two (R, B, N/2): even and odd places of the last dimension.
    ROWS: tl.constexpr = x.shape[0]
    BLOCKS: tl.constexpr = x.shape[1]
    SIZE: tl.constexpr = x.shape[2]
    if SIZE == 2:
        first, second = tl.split(x)
    else:
        first, second = tl.split(tl.reshape(x, (ROWS, BLOCKS, SIZE // 2, 2)))
    return first, second


@triton.jit
def _sum_in_order(even, odd):
    """(R, B, 8) losses of even and odd elements -> (R, B), added one after the other from 0 on."""
    at0mod4, at2mod4 = _halves(even)
    at1mod4, at3mod4 = _halves(odd)
    at0mod8, at4mod8 = _halves(at0mod4)
    at1mod8, at5mod8 = _halves(at1mod4)
    at2mod8, at6mod8 = _halves(at2mod4)
    at3mod8, at7mod8 = _halves(at3mod4)
    e0, e8 = _halves(at0mod8)
    e1, e9 = _halves(at1mod8)
    e2, e10 = _halves(at2mod8)
    e3, e11 = _halves(at3mod8)
    e4, e12 = _halves(at4mod8)
    e5, e13 = _halves(at5mod8)
    e6, e14 = _halves(at6mod8)
    e7, e15 = _halves(at7mod8)
    return e0 + e1 + e2 + e3 + e4 + e5 + e6 + e7 + e8 + e9 + e10 + e11 + e12 + e13 + e14 + e15


@triton.jit
def _fold_rows(total, HALF: tl.constexpr):
    """(R, B) -> (R/2, B): of 2 * HALF rows each, the lower HALF added to the upper."""
    ROWS: tl.constexpr = total.shape[0] // (2 * HALF)
    BLOCKS: tl.constexpr = total.shape[1]
    apart = tl.permute(tl.reshape(total, (ROWS, 2, HALF, BLOCKS)), (0, 2, 3, 1))
    upper, lower = tl.split(apart)
    return tl.reshape(upper + lower, (ROWS * HALF, BLOCKS))


@triton.jit
def _loss(decoded, x, scale, amax, RANGE: tl.constexpr, SQUARED: tl.constexpr):
    ROWS: tl.constexpr = x.shape[0]
    BLOCKS: tl.constexpr = x.shape[1] // 8
    value = tl.reshape(decoded, (ROWS, BLOCKS, 8)) * scale[:, :, None]
    value = tl.math.div_rn(value * amax[:, None, None], RANGE)
    deviation = value - tl.reshape(x, (ROWS, BLOCKS, 8))
    if SQUARED:
        loss = deviation * deviation
    else:
        loss = tl.abs(deviation)
    return loss


@triton.jit
def _candidate(
    tile,
    wanted,
    s_enc,
    amax,
    RANGE: tl.constexpr,
    SQUARED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    ARCH: tl.constexpr,
):
    """Scale bytes (R/BR, B), packed codes (R, C/2) and errors (R/BR, B) of one wanted scale."""
    byte = encode_fp8(tl.minimum(wanted, 448.0), "e4m3", ARCH)
    blocks = as_blocks(tile, BLOCK_ROWS, 16)
    low, high = split_pairs(from_blocks(blocks * over_block(block_factor(byte, s_enc, ARCH))))
    pairs = encode_e2m1_pairs(low, high, ARCH)
    scale = decode_fp8(over_rows(byte, BLOCK_ROWS), "e4m3", ARCH)
    x_low, x_high = split_pairs(tile)
    decoded_low, decoded_high = decode_e2m1_pairs(pairs, ARCH)
    error = _sum_in_order(
        _loss(decoded_low, x_low, scale, amax, RANGE, SQUARED),
        _loss(decoded_high, x_high, scale, amax, RANGE, SQUARED),
    )
    if BLOCK_ROWS == 16:
        error = _fold_rows(_fold_rows(_fold_rows(_fold_rows(error, 8), 4), 2), 1)
    return byte, pairs, error


@triton.jit
def four_over_six_kernel(
    x,
    amax,
    packed,
    scale,
    M,
    K,
    stride_m,
    stride_k,
    packed_k,
    scale_k,
    RANGE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    PER_ROW: tl.constexpr,
    SQUARED: tl.constexpr,
    VECTOR: tl.constexpr,
    ARCH: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLS: tl.constexpr,
):
    """Packed codes of ``x`` and the E4M3 scale of each block, which maps its maximum to 6 or 4.

    RANGE is 6 times the block scale that ``amax`` maps to; SQUARED errors or absolute ones.
    """
    row0, col0 = tile_origin(K, TILE_ROWS, TILE_COLS)
    runs = load_runs(x, row0, col0, M, K, stride_m, stride_k, 16, VECTOR, TILE_ROWS, TILE_COLS)
    tile = widen(runs)
    largest = load_amax(amax, row0, M, PER_ROW, TILE_ROWS)
    s_enc = encode_scale(largest, RANGE)
    blocks = as_blocks(tile, BLOCK_ROWS, 16)
    base = tl.math.div_rn(block_amax(blocks), 6.0) * s_enc[:, None]
    byte6, pairs6, error6 = _candidate(tile, base, s_enc, largest, RANGE, SQUARED, BLOCK_ROWS, ARCH)
    byte4, pairs4, error4 = _candidate(
        tile, base * 1.5, s_enc, largest, RANGE, SQUARED, BLOCK_ROWS, ARCH
    )
    to_four = error4 < error6
    pairs = tl.where(
        over_block(to_four), as_blocks(pairs4, BLOCK_ROWS, 8), as_blocks(pairs6, BLOCK_ROWS, 8)
    )
    byte = over_rows(tl.where(to_four, byte4, byte6), BLOCK_ROWS)
    store_tile(packed, from_blocks(pairs), row0, col0 // 2, M, packed_k)
    store_tile(scale, byte, row0, col0 // 16, M, scale_k)
