"""NVFP4: E2M1 elements, one E4M3 scale per 16 of them, one fp32 amax per tensor or row."""

import torch
from torch import Tensor

from qrole_kernels.errors import ArgumentError
from qrole_kernels.formats import E2M1
from qrole_kernels.reference.arguments import as_float32, check_choice, check_shape
from qrole_kernels.reference.blocks import block_amax, ceil_div, expand_blocks, split_blocks
from qrole_kernels.reference.elements import (
    decode_e2m1,
    decode_fp8,
    encode_e2m1,
    encode_e2m1_stochastic,
    encode_fp8,
    pack_nibbles,
    unpack_nibbles,
)

BLOCK = 16
FLOAT32_MAX = torch.finfo(torch.float32).max


def quantize_nvfp4(
    x: Tensor,
    amax: Tensor,
    block_rows: int,
    e4m3_max: int = 448,
    four_over_six: str = "",
    random_bits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Quantize (M, K) in blocks of (block_rows, 16), block_rows 1 or 16.

    Args:
        x: High-precision matrix (M, K).
        amax: fp32 scalar, or (M,) for one amax per row (1x16 blocks only).
        block_rows: 1, or 16 for square blocks.
        e4m3_max: Largest block scale that `amax` maps to, 448 or 256.
        four_over_six: "mae" or "mse": map the maximum of a block to 4 instead of 6 where that makes
            this error smaller. "": always to 6.
        random_bits: uint8 (M, K) for stochastic rounding; not together with `four_over_six`.

    Returns:
        Packed codes uint8 (M, ceil(K/2)), E4M3 scales uint8 (M, ceil(K/16)); those of square blocks
        are repeated for each row.
    """
    check_choice("block_rows", block_rows, (1, BLOCK))
    check_choice("e4m3_max", e4m3_max, (448, 256))
    check_choice("four_over_six", four_over_six, ("", "mae", "mse"))
    wide = as_float32(x)
    amax = _amax_column(amax, x.shape[0], block_rows)
    if random_bits is not None:
        check_shape("random_bits", random_bits, tuple(x.shape))
    if four_over_six:
        refuse_random_bits(random_bits)
        codes, scale = _four_over_six(wide, amax, block_rows, e4m3_max, four_over_six)
    else:
        s_enc = encode_scale(amax, e4m3_max)
        b_amax = block_amax(wide, block_rows, BLOCK)
        scale = _e4m3_scale(b_amax * (s_enc * torch.full_like(s_enc, 1 / 6)))
        codes = _encode(wide, scale, s_enc, block_rows, random_bits)
    return pack_nibbles(codes), scale.repeat_interleave(block_rows, 0)[: x.shape[0]]


def check_amax(amax: Tensor, rows: int, block_rows: int) -> None:
    """Check that `amax` is one number, or one per row of 1x16 blocks.

    Raises:
        ArgumentError: It is neither.
    """
    if amax.dim() == 0:
        return
    check_shape("amax", amax, (rows,))
    if block_rows != 1:
        raise ArgumentError(
            f"one amax per row with block_rows={block_rows}",
            "block_rows=1 for row-scaled data",
            "Pass the amax of the whole tensor, or 1x16 blocks.",
        )


def _amax_column(amax: Tensor, rows: int, block_rows: int) -> Tensor:
    """Bring the amax of a tensor to (1, 1), that of rows to (M, 1)."""
    check_amax(amax, rows, block_rows)
    return amax.view(-1, 1)


def refuse_random_bits(random_bits: Tensor | None) -> None:
    """Refuse random bits where two roundings are compared.

    Raises:
        ArgumentError: There are some.
    """
    if random_bits is not None:
        raise ArgumentError(
            "random_bits together with four_over_six",
            "one of the two",
            "Four-over-six compares the errors of round-to-nearest; drop random_bits.",
        )


def encode_scale(amax: Tensor, e4m3_max: int) -> Tensor:
    """Factor 6 * e4m3_max / amax that brings block maxima into E4M3 range, fp32, elementwise."""
    s_enc = torch.full_like(amax, E2M1.max * e4m3_max) / amax
    s_enc = s_enc.fmin(torch.full_like(amax, FLOAT32_MAX))
    return s_enc.masked_fill((amax == 0) | (s_enc == 0), 1.0)


def _e4m3_scale(scale: Tensor) -> Tensor:
    return encode_fp8(scale.fmin(torch.full_like(scale, FLOAT32_MAX)), "e4m3")


def _encode(
    x: Tensor, scale: Tensor, s_enc: Tensor, block_rows: int, random_bits: Tensor | None = None
) -> Tensor:
    """Codes (M, K) of `x` under E4M3 block scales (blocks of M, blocks of K)."""
    s_dec = 1.0 / s_enc
    # A scale of zero divides by nothing: the factor saturates at the largest fp32.
    inverse = (1.0 / (decode_fp8(scale, "e4m3") * s_dec)).clamp(max=FLOAT32_MAX)
    scaled = x * expand_blocks(inverse, block_rows, BLOCK, x.shape)
    return (
        encode_e2m1(scaled) if random_bits is None else encode_e2m1_stochastic(scaled, random_bits)
    )


def _four_over_six(
    x: Tensor, amax: Tensor, block_rows: int, e4m3_max: int, error: str
) -> tuple[Tensor, Tensor]:
    s_enc = encode_scale(amax, e4m3_max)
    b_amax = block_amax(x, block_rows, BLOCK)
    base = (b_amax / 6) * s_enc
    scale_6 = encode_fp8(base.clamp(max=448.0), "e4m3")
    scale_4 = encode_fp8((base * 1.5).clamp(max=448.0), "e4m3")
    codes_6 = _encode(x, scale_6, s_enc, block_rows)
    codes_4 = _encode(x, scale_4, s_enc, block_rows)
    error_6 = _block_error(x, codes_6, scale_6, amax, block_rows, e4m3_max, error)
    error_4 = _block_error(x, codes_4, scale_4, amax, block_rows, e4m3_max, error)
    map_4 = error_4 < error_6
    picked = expand_blocks(map_4, block_rows, BLOCK, x.shape)
    return torch.where(picked, codes_4, codes_6), torch.where(map_4, scale_4, scale_6)


def _block_error(
    x: Tensor,
    codes: Tensor,
    scale: Tensor,
    amax: Tensor,
    block_rows: int,
    e4m3_max: int,
    error: str,
) -> Tensor:
    """Sum of absolute or squared errors per block, in the kernels' order of additions."""
    s = expand_blocks(decode_fp8(scale, "e4m3"), block_rows, BLOCK, x.shape)
    deviation = decode_e2m1(codes) * s * amax / (6 * e4m3_max) - x
    loss = deviation.abs() if error == "mae" else deviation * deviation
    blocks = split_blocks(loss, block_rows, BLOCK)
    total = torch.zeros_like(blocks[..., 0])
    for i in range(BLOCK):
        total = total + blocks[..., i]
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    return total[:, 0]


def dequantize_nvfp4(
    packed: Tensor, scale: Tensor, amax: Tensor, e4m3_max: int, dtype: torch.dtype
) -> Tensor:
    """Decode packed codes (M, P) to (M, 2P): fp32 arithmetic, one rounding to `dtype`.

    An odd K was padded by one zero when it was packed; cut the last column off then.

    Args:
        packed: uint8 (M, P).
        scale: E4M3 uint8 (M, ceil(P/8)).
        amax: fp32 scalar or (M,).
        e4m3_max: As given to `quantize_nvfp4`.
        dtype: Of the result.
    """
    check_choice("e4m3_max", e4m3_max, (448, 256))
    codes = unpack_nibbles(packed)
    check_shape("scale", scale, (packed.shape[0], ceil_div(codes.shape[1], BLOCK)))
    column = _amax_column(amax, packed.shape[0], 1)
    factor = decode_fp8(scale, "e4m3") * column
    factor = factor * torch.full_like(factor, 1 / (6 * e4m3_max))
    return (decode_e2m1(codes) * expand_blocks(factor, 1, BLOCK, codes.shape)).to(dtype)
