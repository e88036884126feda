"""MXFP4 (OCP MX v1.0): E2M1 elements, one E8M0 scale per 32 of them, three scale rules."""

import torch
from torch import Tensor

from qrole_kernels.formats import E2M1
from qrole_kernels.reference.arguments import as_float32, check_choice, check_shape
from qrole_kernels.reference.blocks import block_amax, ceil_div, expand_blocks
from qrole_kernels.reference.elements import (
    decode_e2m1,
    decode_e8m0,
    encode_e2m1,
    encode_e8m0_up,
    pack_nibbles,
    reciprocal_e8m0,
    unpack_nibbles,
)

BLOCK = 32
RULES = ("rceil", "floor", "even")
MAX_EXPONENT = 2
"""Exponent of the largest E2M1 value, 6 = 1.5 * 2^2."""


def quantize_mxfp4(x: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """Quantize (M, K) in blocks of (1, 32).

    Args:
        x: High-precision matrix (M, K).
        rule: How amax becomes a power of two. "rceil": amax/6 rounded up. "floor": the power not
            above amax, divided by 4. "even": the same after amax was rounded to E2M1's mantissa.

    Returns:
        Packed codes uint8 (M, ceil(K/2)), E8M0 scales uint8 (M, ceil(K/32)).
    """
    check_choice("rule", rule, RULES)
    wide = as_float32(x)
    scale = _scale(block_amax(wide, 1, BLOCK), rule)
    factor = expand_blocks(reciprocal_e8m0(scale), 1, BLOCK, x.shape)
    return pack_nibbles(encode_e2m1(wide * factor)), scale


def _scale(amax: Tensor, rule: str) -> Tensor:
    if rule == "rceil":
        return encode_e8m0_up(amax * torch.full_like(amax, 1.0 / E2M1.max))
    bits = amax.view(torch.int32)
    if rule == "even":
        bits = bits + (1 << 21)
    return ((bits >> 23) - MAX_EXPONENT).clamp(0, 254).to(torch.uint8)


def dequantize_mxfp4(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Decode packed codes (M, P) to (M, 2P): fp32 product, one rounding to `dtype`.

    An odd K was padded by one zero when it was packed; cut the last column off then.
    """
    codes = unpack_nibbles(packed)
    check_shape("scale", scale, (packed.shape[0], ceil_div(codes.shape[1], BLOCK)))
    scales = expand_blocks(decode_e8m0(scale), 1, BLOCK, codes.shape)
    return (scales * decode_e2m1(codes)).to(dtype)
