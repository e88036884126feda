"""Casts between fp32 and the element formats, and the packing of 4-bit codes."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from qrole_kernels.formats import E2M1, fp8_format

_FP8_DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def encode_fp8(x: Tensor, element: str) -> Tensor:
    """Cast fp32 to FP8 codes (uint8), nearest even and saturating; any NaN -> 0x7F."""
    form = fp8_format(element)
    saturated = x.clamp(-form.max, form.max)
    codes = saturated.to(_FP8_DTYPES[element]).view(torch.uint8)
    return codes.masked_fill(x.isnan(), form.nan_cast)


def decode_fp8(codes: Tensor, element: str) -> Tensor:
    """Decode FP8 codes (uint8) to fp32."""
    fp8_format(element)
    return codes.view(_FP8_DTYPES[element]).float()


def encode_e2m1(x: Tensor) -> Tensor:
    """Cast fp32 to E2M1 codes 0..15 (uint8), nearest even and saturating; NaN -> +6."""
    a = x.abs()
    crossed = (a > 0.25, a >= 0.75, a > 1.25, a >= 1.75, a > 2.5, a >= 3.5, a > 5)
    magnitude = torch.stack(crossed).sum(0, dtype=torch.uint8)
    return _signed_e2m1(magnitude, x)


def encode_e2m1_stochastic(x: Tensor, random_bits: Tensor) -> Tensor:
    """Cast fp32 to E2M1 codes, rounding up with the probability of the distance passed.

    Args:
        x: fp32, any shape.
        random_bits: uint8 of the same shape; r/256 of a grid step is added before truncation.
    """
    a = x.abs()
    # The product is exact, so that the sum rounds once, like the kernels' fused multiply-add.
    t = a + random_bits.float() * (_e2m1_step(a) / 256)
    step = _e2m1_step(t)
    value = ((t / step).floor() * step).clamp(max=E2M1.max)
    return _signed_e2m1(encode_e2m1(value), x)


def _e2m1_step(a: Tensor) -> Tensor:
    """Distance of neighbouring E2M1 values around the magnitude `a`."""
    return 0.5 + 0.5 * (a >= 2).float() + (a >= 4).float()


def _signed_e2m1(magnitude: Tensor, x: Tensor) -> Tensor:
    codes = magnitude | (x.signbit().to(torch.uint8) << 3)
    return codes.masked_fill(x.isnan(), E2M1.nan_cast)


def decode_e2m1(codes: Tensor) -> Tensor:
    """Decode E2M1 codes 0..15 (uint8) to fp32."""
    table = torch.tensor([E2M1.value(code) for code in range(16)], device=codes.device)
    return table[codes.int()]


def pack_nibbles(codes: Tensor) -> Tensor:
    """Pack codes (M, K) into bytes (M, ceil(K/2)), the even element in the low nibble.

    The last high nibble of an odd K is 0.
    """
    even = pad(codes, (0, codes.shape[1] % 2))
    return even[:, 0::2] | (even[:, 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """Unpack bytes (M, P) into codes (M, 2P)."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(1)


def encode_e8m0_up(x: Tensor) -> Tensor:
    """Round non-negative fp32 up to a power of two, as its E8M0 code (uint8).

    Exact powers stay; 0 -> 0x00, above 2^127 and inf -> 0xFE, NaN -> 0xFF.
    """
    bits = x.contiguous().view(torch.int32)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    # A subnormal up to 2^-127 is code 0 already; 254 is the last code that is a number.
    up = (mantissa > 0) & (exponent != 254) & ~((exponent == 0) & (mantissa <= 0x400000))
    code = (exponent + up.int()).clamp(max=254)
    return code.to(torch.uint8).masked_fill(x.isnan(), 0xFF)


def decode_e8m0(codes: Tensor) -> Tensor:
    """Decode E8M0 codes (uint8) to fp32: 2^(code-127), 0xFF is NaN."""
    b = codes.int()
    bits = (b << 23).masked_fill(b == 0, 0x00400000).masked_fill(b == 255, 0x7FC00000)
    return bits.view(torch.float32)


def reciprocal_e8m0(codes: Tensor) -> Tensor:
    """The factor 2^(127-code) that divides by an E8M0 scale, in fp32; 0xFF gives NaN."""
    return decode_e8m0((254 - codes.int()).clamp(min=0).to(torch.uint8)).masked_fill(
        codes == 255, torch.nan
    )
