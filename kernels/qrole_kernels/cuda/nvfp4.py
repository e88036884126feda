"""NVFP4: E2M1 elements, one E4M3 scale per 16 of them, one fp32 amax per tensor or row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from qrole_kernels.cuda.decode import decode_e2m1_data
from qrole_kernels.cuda.launch import architecture, launch
from qrole_kernels.cuda.nvfp4_four_over_six import four_over_six_kernel
from qrole_kernels.cuda.nvfp4_scales import (
    block_factor,
    encode_scale,
    over_rows,
)
from qrole_kernels.cuda.rounding import (
    FLOAT32_MAX,
    ONE_SIXTH,
    encode_e2m1_pairs,
    encode_e2m1_stochastic,
    encode_fp8,
)
from qrole_kernels.cuda.tiles import (
    Tile,
    as_blocks,
    block_amax,
    column_major,
    from_blocks,
    has_aligned_rows,
    load_amax,
    load_runs,
    load_tile,
    matrix_arguments,
    over_block,
    split_pairs,
    store_tile,
    tile_origin,
    vector_of,
    widen,
)
from qrole_kernels.reference.arguments import check_choice, check_matrix, check_shape
from qrole_kernels.reference.blocks import ceil_div
from qrole_kernels.reference.nvfp4 import BLOCK, check_amax, refuse_random_bits


@triton.jit
def nvfp4_kernel(
    x,
    amax,
    random,
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
    STOCHASTIC: tl.constexpr,
    VECTOR: tl.constexpr,
    ARCH: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLS: tl.constexpr,
):
    """Packed codes of ``x`` and the E4M3 scale of each (BLOCK_ROWS, 16) block, one per row.

    RANGE is 6 times the block scale that ``amax`` maps to.
    """
    row0, col0 = tile_origin(K, TILE_ROWS, TILE_COLS)
    runs = load_runs(x, row0, col0, M, K, stride_m, stride_k, 16, VECTOR, TILE_ROWS, TILE_COLS)
    tile = widen(runs)
    blocks = as_blocks(tile, BLOCK_ROWS, 16)
    s_enc = encode_scale(load_amax(amax, row0, M, PER_ROW, TILE_ROWS), RANGE)
    wanted = block_amax(blocks) * (s_enc * ONE_SIXTH)[:, None]
    byte = encode_fp8(tl.minimum(wanted, FLOAT32_MAX), "e4m3", ARCH)
    scaled = from_blocks(blocks * over_block(block_factor(byte, s_enc, ARCH)))
    if STOCHASTIC:
        bits = load_tile(random, row0, col0, M, K, K, 1, TILE_ROWS, TILE_COLS)
        low, high = split_pairs(encode_e2m1_stochastic(scaled, bits))
        pairs = (low | (high << 4)).to(tl.uint8)
    else:
        low, high = split_pairs(scaled)
        pairs = encode_e2m1_pairs(low, high, ARCH)
    store_tile(packed, pairs, row0, col0 // 2, M, packed_k)
    store_tile(scale, over_rows(byte, BLOCK_ROWS), row0, col0 // 16, M, scale_k)


def quantize_nvfp4(
    x: Tensor,
    amax: Tensor,
    block_rows: int,
    e4m3_max: int = 448,
    four_over_six: str = "",
    random_bits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Quantize (M, K) in blocks of (block_rows, 16); the options are those of the reference.

    Returns:
        Packed codes uint8 (M, ceil(K/2)), E4M3 scales uint8 (M, ceil(K/16)).
    """
    check_matrix(x)
    check_choice("block_rows", block_rows, (1, BLOCK))
    check_choice("e4m3_max", e4m3_max, (448, 256))
    check_choice("four_over_six", four_over_six, ("", "mae", "mse"))
    check_amax(amax, x.shape[0], block_rows)
    if random_bits is not None:
        check_shape("random_bits", random_bits, tuple(x.shape))
    if four_over_six:
        refuse_random_bits(random_bits)
    arch = architecture(x.device)
    rows, cols = x.shape
    packed = torch.empty((rows, ceil_div(cols, 2)), dtype=torch.uint8, device=x.device)
    scale = torch.empty((rows, ceil_div(cols, BLOCK)), dtype=torch.uint8, device=x.device)
    tile = _tile(x, four_over_six != "", random_bits is not None)
    arguments = matrix_arguments(x) | {
        "amax": amax.contiguous(),
        "packed": packed,
        "scale": scale,
        # As arguments, so that the compiler sees which widths allow wide stores.
        "packed_k": packed.shape[1],
        "scale_k": scale.shape[1],
    }
    constants = tile.constants() | {
        "RANGE": 6.0 * e4m3_max,
        "BLOCK_ROWS": block_rows,
        "PER_ROW": amax.dim() == 1,
        "VECTOR": vector_of(x),
        "ARCH": arch,
    }
    if four_over_six:
        constants["SQUARED"] = four_over_six == "mse"
        launch(four_over_six_kernel, tile.programs(rows, cols), arguments, constants)
    else:
        # The kernel does not read what stands in for missing random bytes.
        arguments["random"] = packed if random_bits is None else random_bits.contiguous()
        constants["STOCHASTIC"] = random_bits is not None
        launch(nvfp4_kernel, tile.programs(rows, cols), arguments, constants)
    return packed, scale


def _tile(x: Tensor, four_over_six: bool, stochastic: bool) -> Tile:
    """The largest that the registers of four warps hold."""
    if four_over_six:
        return Tile(16, 128)
    if column_major(x):
        return Tile(128, 64 if stochastic else 128)
    return Tile(64, 128) if has_aligned_rows(x) else Tile(16, 128)


def dequantize_nvfp4(
    packed: Tensor, scale: Tensor, amax: Tensor, e4m3_max: int, dtype: torch.dtype
) -> Tensor:
    """Decode packed codes (M, P) to (M, 2P): fp32 arithmetic, one rounding to ``dtype``.

    An odd K was padded by one zero when it was packed; cut the last column off then.
    """
    check_choice("e4m3_max", e4m3_max, (448, 256))
    check_shape("scale", scale, (packed.shape[0], ceil_div(2 * packed.shape[1], BLOCK)))
    check_amax(amax, packed.shape[0], 1)
    return decode_e2m1_data(packed, scale, amax, 1 / (6 * e4m3_max), dtype)
