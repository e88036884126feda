"""Casts from fp32 lanes to the element formats: nearest even, saturating."""

from __future__ import annotations

from qrole_kernels.cpu.simd import I8, I16, I32, Value, lanes, maximum, minimum, select
from qrole_kernels.cpu.source import Pair
from qrole_kernels.formats import E2M1, ElementFormat

FLOAT32_MAX = float.fromhex("0x1.fffffep127")


def round_code(magnitude: Value, mantissa_bits: int, bias: int) -> Value:
    """Codes of magnitudes that don't overflow the format, in 32-bit lanes; from bit 23 up is noise.

    The sum with `_rounder` has the rounded mantissa in its low bits.
    """
    kept = 23 - mantissa_bits
    rounded = (magnitude + _rounder(magnitude, mantissa_bits, bias)).bits()
    return rounded + (rounded >> kept) - ((127 + 1 - bias + kept) << mantissa_bits)


def round_value(magnitude: Value, form: ElementFormat) -> Value:
    """The values that `round_code` encodes, in fp32."""
    rounder = _rounder(magnitude, form.mantissa_bits, form.bias)
    return magnitude + rounder - rounder


def _rounder(magnitude: Value, mantissa_bits: int, bias: int) -> Value:
    """2^(e + 23 - mantissa_bits), e the exponent of the magnitude or of the smallest normal one."""
    exponent = maximum(magnitude, 2.0 ** (1 - bias)).bits() & 0x7F800000
    return (exponent + ((23 - mantissa_bits) << 23)).as_f32()


def saturate_code(magnitude: Value, form: ElementFormat) -> Value:
    """Codes of any magnitudes; infinity and NaN get the code of `form.max`. See `round_code`."""
    return finite_code(minimum(magnitude, form.max), form)


def finite_code(magnitude: Value, form: ElementFormat) -> Value:
    """Codes of magnitudes that don't round to more than `form.max`. See `round_code`."""
    return round_code(magnitude, form.mantissa_bits, form.bias)


def fp8_codes(
    pair: Pair, factors: Value | tuple[Value, Value], form: ElementFormat, in_range: bool
) -> Value:
    """FP8 codes (32 bytes) of elements times positive finite factors.

    The factors are 16 x fp32, the same for even and odd elements or one vector for each. `in_range`
    says that no element is NaN and no product rounds to more than `form.max`.
    """
    even_factor, odd_factor = factors if isinstance(factors, tuple) else (factors, factors)
    code = finite_code if in_range else saturate_code
    even, odd = code(pair.even * even_factor, form), code(pair.odd * odd_factor, form)
    codes = join_codes(even, odd) | ((pair.top >> 8) & 0x80)
    return (codes if in_range else select(pair.is_nan(), form.nan_cast, codes)).narrow(I8)


def fp8_codes_any(pair: Pair, factor: Value, form: ElementFormat) -> Value:
    """The same for a factor that may also be zero, negative, infinite or NaN."""
    products = pair.even * factor.magnitude(), pair.odd * factor.magnitude()
    even, odd = (select(y.equals(y), saturate_code(y, form), form.nan_cast) for y in products)
    codes = join_codes(even, odd)
    negative = (factor.bits() >> 31) * 0x00800080
    signs = ((pair.top >> 8) & 0x80) ^ negative.as_type(lanes(I16, 32))
    return (codes | select(codes.equals(form.nan_cast), 0, signs)).narrow(I8)


def join_codes(even: Value, odd: Value) -> Value:
    """The codes of a vector in order, 32 x i16."""
    return ((even & 0xFFFF) | (odd << 16)).as_type(lanes(I16, 32))


def fp4_codes(pair: Pair, factor: Value, in_range: bool) -> Value:
    """Packed FP4 codes (16 bytes) of elements times a positive finite factor (16 x fp32).

    `in_range` says that no element is NaN and no product rounds to more than 6.
    """
    code = finite_code if in_range else saturate_code
    even, odd = (code(half * factor, E2M1) for half in (pair.even, pair.odd))
    # NaN saturates to the code that it is cast to; only its sign has to go.
    return join_nibbles(even, odd, pair.top if in_range else select(pair.is_nan(), 0, pair.top))


def fp4_codes_stochastic(pair: Pair, factor: Value, random: tuple[Value, Value]) -> Value:
    """The same, rounded up or down by random bytes, those of even and of odd elements."""
    halves = zip((pair.even, pair.odd), random, strict=True)
    even, odd = (stochastic_e2m1(half * factor, bits) for half, bits in halves)
    return join_nibbles(even, odd, select(pair.is_nan(), 0, pair.top))


def stochastic_e2m1(magnitude: Value, random: Value) -> Value:
    """E2M1 codes: `random`/256 of a grid step is added (the product is exact), then truncated."""
    _, step = _e2m1_grid(magnitude)
    raised = minimum(magnitude + random.to_f32() * (step * (1 / 256)), 8.0)
    first, step = _e2m1_grid(raised)
    return minimum((raised / step).truncate() + first, E2M1.max_code)


def _e2m1_grid(magnitude: Value) -> tuple[Value, Value]:
    """What a multiple of the step adds up to a code with, and the step, by the magnitude."""
    from_two, from_four = magnitude >= 2.0, magnitude >= 4.0
    step = select(from_four, 2.0, select(from_two, 1.0, magnitude.like(0.5)))
    bits = magnitude.bits()
    return select(from_four, 4, select(from_two, 2, bits.like(0))), step


def join_nibbles(even: Value, odd: Value, top: Value) -> Value:
    """Packs codes of magnitudes (16 x i32 each) with the signs in `top` (32 x i16)."""
    signs = top.as_type(lanes(I32, 16))
    codes = even | (odd << 4) | ((signs >> 12) & 0x8) | ((signs >> 24) & 0x80)
    return codes.narrow(I8)


def e8m0_up(magnitude: Value) -> Value:
    """E8M0 codes of non-negative fp32, rounded up to a power of two: 0 -> 0, inf -> 0xFE."""
    bits = magnitude.bits()
    almost_one = select(bits < 0x800000, bits.like(0x3FFFFF), 0x7FFFFF)
    return minimum((bits + almost_one) >> 23, 254)


def e8m0_reciprocal(code: Value) -> Value:
    """2^(127 - code) in fp32, for codes up to 0xFE."""
    return select(code.equals(254), code.like(0x00400000), (254 - code) << 23).as_f32()
