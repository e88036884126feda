"""MXFP4 (OCP MX v1.0): E2M1 elements, one E8M0 scale per 32 of them, three scale rules."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from qrole_kernels.cuda.decode import decode_e2m1_data
from qrole_kernels.cuda.launch import architecture, launch
from qrole_kernels.cuda.rounding import (
    bits_of,
    e8m0_reciprocal,
    encode_e2m1_pairs,
    encode_e8m0,
)
from qrole_kernels.cuda.tiles import (
    Tile,
    as_blocks,
    block_amax,
    column_major,
    from_blocks,
    load_tile,
    matrix_arguments,
    over_block,
    split_pairs,
    store_tile,
    tile_origin,
    widen,
)
from qrole_kernels.reference.arguments import check_choice, check_matrix, check_shape
from qrole_kernels.reference.blocks import ceil_div
from qrole_kernels.reference.mxfp4 import BLOCK, RULES


@triton.jit
def _scale_byte(amax, RULE: tl.constexpr):
    if RULE == "rceil":
        byte = encode_e8m0(amax * (1.0 / 6.0))
    else:
        bits = bits_of(amax)
        if RULE == "even":
            # Half a step of E2M1's one mantissa bit: what rounds up to the next power takes it.
            bits += 1 << 21
        # 6 = 1.5 * 2^2, hence two exponents below that of amax.
        byte = tl.minimum(tl.maximum(bits >> 23, 2) - 2, 254)
    return byte


@triton.jit
def mxfp4_kernel(
    x,
    packed,
    scale,
    M,
    K,
    stride_m,
    stride_k,
    packed_k,
    scale_k,
    RULE: tl.constexpr,
    BLOCK: tl.constexpr,
    ARCH: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLS: tl.constexpr,
):
    """Packed codes of ``x`` and one exponent byte per (1, BLOCK) block."""
    row0, col0 = tile_origin(K, TILE_ROWS, TILE_COLS)
    tile = widen(load_tile(x, row0, col0, M, K, stride_m, stride_k, TILE_ROWS, TILE_COLS))
    blocks = as_blocks(tile, 1, BLOCK)
    byte = _scale_byte(block_amax(blocks), RULE)
    low, high = split_pairs(from_blocks(blocks * over_block(e8m0_reciprocal(byte))))
    pairs = encode_e2m1_pairs(low, high, ARCH)
    store_tile(packed, pairs, row0, col0 // 2, M, packed_k)
    store_tile(scale, byte.to(tl.uint8), row0, col0 // BLOCK, M, scale_k)


def quantize_mxfp4(x: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """Quantize (M, K) in blocks of (1, 32); the rules are those of the reference.

    Returns:
        Packed codes uint8 (M, ceil(K/2)), E8M0 scales uint8 (M, ceil(K/32)).
    """
    check_matrix(x)
    check_choice("rule", rule, RULES)
    arch = architecture(x.device)
    rows, cols = x.shape
    packed = torch.empty((rows, ceil_div(cols, 2)), dtype=torch.uint8, device=x.device)
    scale = torch.empty((rows, ceil_div(cols, BLOCK)), dtype=torch.uint8, device=x.device)
    tile = Tile(128, 32) if column_major(x) else Tile(32, 128)
    launch(
        mxfp4_kernel,
        tile.programs(rows, cols),
        matrix_arguments(x)
        | {
            "packed": packed,
            "scale": scale,
            "packed_k": packed.shape[1],
            "scale_k": scale.shape[1],
        },
        tile.constants() | {"RULE": rule, "BLOCK": BLOCK, "ARCH": arch},
    )
    return packed, scale


def dequantize_mxfp4(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Decode packed codes (M, P) to (M, 2P): fp32 product, one rounding to ``dtype``.

    An odd K was padded by one zero when it was packed; cut the last column off then.
    """
    check_shape("scale", scale, (packed.shape[0], ceil_div(2 * packed.shape[1], BLOCK)))
    return decode_e2m1_data(packed, scale, None, 1.0, dtype)
