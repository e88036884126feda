"""Element and scale conversions as Triton device functions.

Each encoder has an integer path (any architecture, and the interpreter, whose own casts round
wrongly) and, where the hardware converts in one instruction, that instruction. The constexpr
``ARCH`` chooses: 10 * major + minor of the compute capability, 0 for the integer path.
"""

import triton
import triton.language as tl

FLOAT32_MAX = tl.constexpr(3.4028234663852886e38)
ONE_SIXTH = tl.constexpr(0.16666667163372040)


@triton.jit
def bits_of(value):
    """The fp32 value's bits as uint32."""
    return value.to(tl.uint32, bitcast=True)


@triton.jit
def float_of(bits):
    """The fp32 value of uint32 bits."""
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def _grid_steps(magnitude, MANTISSA: tl.constexpr, MIN_FIELD: tl.constexpr):
    """Code of a magnitude not above the format's maximum; the sign bit of the fp32 is ignored."""
    # Adding 2^(e + 23 - MANTISSA), e the value's exponent but at least that of the smallest normal
    # number, makes the adder round to the format's grid, subnormals included; the difference of
    # the bit patterns then counts grid steps.
    SHIFT: tl.constexpr = 23 - MANTISSA
    exponent = tl.maximum(bits_of(magnitude) & 0x7F800000, MIN_FIELD << 23)
    steps = bits_of(tl.abs(magnitude) + float_of(exponent + (SHIFT << 23))) - exponent
    return steps + (exponent >> SHIFT) - ((SHIFT << 23) + (MIN_FIELD << MANTISSA))


@triton.jit
def encode_fp8(value, ELEMENT: tl.constexpr, ARCH: tl.constexpr):
    """fp32 -> E4M3 or E5M2 code (uint8): nearest even, saturating, NaN -> 0x7F."""
    if ARCH >= 89:
        if ELEMENT == "e4m3":
            code = value.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        else:
            code = value.to(tl.float8e5).to(tl.uint8, bitcast=True)
    else:
        if ELEMENT == "e4m3":
            magnitude = _grid_steps(tl.minimum(tl.abs(value), 448.0), 3, 121)
        else:
            magnitude = _grid_steps(tl.minimum(tl.abs(value), 57344.0), 2, 113)
        signed = magnitude | ((bits_of(value) >> 24) & 0x80)
        code = tl.where(value == value, signed, 0x7F).to(tl.uint8)
    return code


@triton.jit
def decode_fp8(code, ELEMENT: tl.constexpr, ARCH: tl.constexpr):
    """E4M3 or E5M2 code (uint8) -> fp32, exact."""
    if ARCH >= 89:
        if ELEMENT == "e4m3":
            value = code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
        else:
            value = code.to(tl.float8e5, bitcast=True).to(tl.float32)
    else:
        wide = code.to(tl.uint32)
        magnitude = wide & 0x7F
        if ELEMENT == "e4m3":
            value = float_of(magnitude << 20) * 1.329227995784916e36  # 2^(127 - 7)
            value = tl.where(magnitude == 0x7F, float("nan"), value)
        else:
            value = float_of(magnitude << 21) * 5.192296858534828e33  # 2^(127 - 15)
            special = tl.where(magnitude == 0x7C, float("inf"), float("nan"))
            value = tl.where(magnitude >= 0x7C, special, value)
        value = float_of(bits_of(value) | ((wide & 0x80) << 24))
    return value


@triton.jit
def _encode_e2m1(value):
    # Minimum and maximum take the number over the NaN: NaN becomes +6 like what lies beyond.
    inside = tl.maximum(tl.minimum(value, 6.0), -6.0)
    return _grid_steps(inside, 1, 127) | ((bits_of(inside) >> 28) & 8)


@triton.jit
def encode_e2m1_pairs(low, high, ARCH: tl.constexpr):
    """Two fp32 -> one byte of two E2M1 codes, ``low`` in the low nibble.

    Nearest even, saturating, NaN -> +6.
    """
    if ARCH >= 100:
        packed = tl.inline_asm_elementwise(
            """{
            .reg .b8 first, second, third, fourth;
            cvt.rn.satfinite.e2m1x2.f32 first, $5, $1;
            cvt.rn.satfinite.e2m1x2.f32 second, $6, $2;
            cvt.rn.satfinite.e2m1x2.f32 third, $7, $3;
            cvt.rn.satfinite.e2m1x2.f32 fourth, $8, $4;
            mov.b32 $0, {first, second, third, fourth};
            }""",
            "=r,r,r,r,r,r,r,r,r",
            [low, high],
            dtype=tl.uint8,
            is_pure=True,
            pack=4,
        )
    else:
        packed = (_encode_e2m1(low) | (_encode_e2m1(high) << 4)).to(tl.uint8)
    return packed


@triton.jit
def encode_e2m1_stochastic(value, random):
    """fp32 -> E2M1 code (uint32), rounded up with probability ``random / 256`` per step.

    ``random``: uint8, the 8 random bits of the element. In integers on every architecture: that
    the hardware's own stochastic conversion agrees in every bit has not been shown.
    """
    inside = tl.maximum(tl.minimum(value, 6.0), -6.0)
    # The power of two at or below the magnitude, at least 1; half of it is the distance of
    # neighbouring codes. The product is exact, the sum rounds once.
    binade = tl.maximum(bits_of(inside) & 0x7F800000, 127 << 23)
    moved = tl.abs(inside) + random.to(tl.float32) * float_of(binade - (9 << 23))
    # From 1 on, one mantissa bit is the grid, and the bits above it are the code up to a constant.
    floor = tl.where(moved < 1.0, (moved >= 0.5).to(tl.uint32), (bits_of(moved) >> 22) - 252)
    return tl.minimum(floor, 7) | ((bits_of(inside) >> 28) & 8)


@triton.jit
def _decode_e2m1(code):
    wide = code.to(tl.uint32)
    value = float_of((wide & 7) << 22) * 8.507059173023462e37  # 2^126
    return float_of(bits_of(value) | ((wide & 8) << 28))


@triton.jit
def decode_e2m1_pairs(packed, ARCH: tl.constexpr):
    """One byte of two E2M1 codes -> the fp32 of the low and of the high nibble, exact."""
    if ARCH >= 100:
        low, high = tl.inline_asm_elementwise(
            """{
            .reg .b8 first, second, third, fourth;
            .reg .b16 even, odd;
            .reg .b32 both;
            mov.b32 {first, second, third, fourth}, $8;
            cvt.rn.f16x2.e2m1x2 both, first;
            mov.b32 {even, odd}, both;
            cvt.f32.f16 $0, even;
            cvt.f32.f16 $4, odd;
            cvt.rn.f16x2.e2m1x2 both, second;
            mov.b32 {even, odd}, both;
            cvt.f32.f16 $1, even;
            cvt.f32.f16 $5, odd;
            cvt.rn.f16x2.e2m1x2 both, third;
            mov.b32 {even, odd}, both;
            cvt.f32.f16 $2, even;
            cvt.f32.f16 $6, odd;
            cvt.rn.f16x2.e2m1x2 both, fourth;
            mov.b32 {even, odd}, both;
            cvt.f32.f16 $3, even;
            cvt.f32.f16 $7, odd;
            }""",
            "=r,=r,=r,=r,=r,=r,=r,=r,r",
            [packed],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=4,
        )
    else:
        low, high = _decode_e2m1(packed), _decode_e2m1(packed >> 4)
    return low, high


@triton.jit
def encode_e8m0(value):
    """fp32 >= 0 -> power-of-two exponent byte (uint32), rounded up, saturating at 0xFE."""
    bits = bits_of(value)
    # Byte 0 is 2^-127, an fp32 subnormal, so below 2^-126 the step lies half a binade lower.
    field = tl.where(bits < 0x00800000, (bits + 0x003FFFFF) >> 23, (bits + 0x007FFFFF) >> 23)
    return tl.minimum(field, 254)


@triton.jit
def e8m0_reciprocal(byte):
    """2^(127 - byte) for a byte (uint32) below 255."""
    return float_of(tl.where(byte == 254, 0x00400000, (254 - byte) << 23))


@triton.jit
def decode_e8m0(byte):
    """Exponent byte (uint8) -> fp32; 0xFF -> NaN."""
    wide = byte.to(tl.uint32)
    bits = tl.where(wide == 0, 0x00400000, wide << 23)
    return float_of(tl.where(wide == 255, 0x7FC00000, bits))


@triton.jit
def scale_of_amax(amax, MAX: tl.constexpr, POWER_OF_TWO: tl.constexpr, epsilon, value_for_inf):
    """Per-tensor or per-block FP8 scale of fp32 ``amax``."""
    amax = tl.where(amax < epsilon, epsilon, amax)
    usable = (amax > 0.0) & (amax < float("inf"))
    scale = tl.math.div_rn(MAX, tl.where(usable, amax, 1.0))
    scale = tl.where(scale == float("inf"), value_for_inf, scale)
    if POWER_OF_TWO:
        scale = float_of(bits_of(scale) & 0xFF800000)
    return tl.where(usable, scale, 1.0)


@triton.jit
def to_output(value, OUTPUT: tl.constexpr, ARCH: tl.constexpr):
    """fp32 -> the output dtype (``"fp32"``, ``"bf16"``, ``"fp16"``), nearest even."""
    if OUTPUT == "fp32":
        result = value
    elif OUTPUT == "fp16":
        result = value.to(tl.float16)
    elif ARCH >= 80:
        result = value.to(tl.bfloat16)
    else:
        bits = bits_of(value)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = tl.where(value == value, rounded, 0x7FC0)
        result = rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return result
