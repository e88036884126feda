"""What holds for every format, on generated matrices."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qrole_kernels import reference
from tests.kernels.bitexact import assert_bits_equal
from tests.kernels.codecs import CODECS, Codec

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@st.composite
def matrices(draw: st.DrawFn) -> Tensor:
    """Matrices (M, K) of finite values over up to 2^+-12 around 1, zeros and whole zero rows."""
    rows, cols = draw(st.integers(1, 40)), draw(st.integers(1, 160))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    spread = draw(st.integers(0, 12))
    exponents = torch.randint(-spread, spread + 1, (rows, cols), generator=generator)
    x = torch.randn(rows, cols, generator=generator) * torch.exp2(exponents.float())
    if draw(st.booleans()):
        x = x.masked_fill(torch.rand(rows, 1, generator=generator) < 0.3, 0.0)
    if draw(st.booleans()):
        x = (x * 4).round() / 4
    return x.clamp(-60000, 60000).to(draw(st.sampled_from(DTYPES)))


each_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
quick = settings(max_examples=25, deadline=None, database=None, derandomize=True)


def _round_trip(codec: Codec, x: Tensor) -> Tensor:
    return codec.decode(codec.quantize(x), x.shape)


@each_codec
@given(x=matrices())
@quick
def test_sign_symmetry(codec, x):
    plus, minus = codec.quantize(x), codec.quantize(-x)
    assert_bits_equal(minus[1], plus[1], "scales")
    flipped = codec.codes(plus, x.shape) ^ codec.sign_bit
    assert_bits_equal(codec.codes(minus, x.shape), flipped, "codes")


@each_codec
@given(x=matrices(), exponent=st.integers(-20, 20))
@quick
def test_powers_of_two_move_only_the_scales(codec, x, exponent):
    x = x.float()
    plain, moved = codec.quantize(x), codec.quantize(x * 2.0**exponent)
    assert_bits_equal(moved[0], plain[0], "data")
    used = codec.codes(plain, x.shape) & (codec.sign_bit - 1) != 0
    ratio = codec.factors(moved, x.shape) / codec.factors(plain, x.shape)
    assert (ratio[used] == 2.0**exponent).logical_or(codec.factors(plain, x.shape)[used] == 0).all()


@each_codec
@given(x=matrices())
@quick
def test_within_half_a_step(codec, x):
    quantized = codec.quantize(x)
    factors = codec.factors(quantized, x.shape)
    scaled = (x.double() / factors).abs()
    error = (codec.decode(quantized, x.shape).double() / factors - x.double() / factors).abs()
    element = codec.element
    exponent = scaled.log2().floor().clamp(min=math.log2(element.min_normal))
    step = torch.exp2(exponent - element.mantissa_bits)
    saturation = (scaled - element.max).clamp(min=0)
    bound = torch.maximum(step / 2, saturation) * (1 + 1e-5) + scaled * 1e-6
    assert (error <= bound)[factors > 0].all()


@each_codec
@given(x=matrices())
@quick
def test_order_within_a_block_is_kept(codec, x):
    row = x[:1, :16].sort(dim=1).values
    decoded = _round_trip(codec, row)
    assert (decoded.diff(dim=1) >= 0).all()


@each_codec
@given(x=matrices())
@quick
def test_zeros_and_signs_survive(codec, x):
    decoded = _round_trip(codec, x)
    assert (decoded[x == 0] == 0).all()
    assert_bits_equal(decoded.signbit(), x.signbit(), "signs")


EXACT_SCALES = [c for c in CODECS if "mxfp" in c.name or "pow2" in c.name]


@pytest.mark.parametrize("codec", EXACT_SCALES, ids=lambda c: c.name)
@given(x=matrices())
@quick
def test_values_of_the_format_are_kept_exactly(codec, x):
    once = _round_trip(codec, x)
    assert_bits_equal(_round_trip(codec, once), once, "second round trip")


ROUNDED_SCALES = [c for c in CODECS if c not in EXACT_SCALES and "nvfp4" not in c.name]


@pytest.mark.parametrize("codec", ROUNDED_SCALES, ids=lambda c: c.name)
@given(x=matrices())
@quick
def test_codes_are_kept_exactly(codec, x):
    """The scale of decoded values may be off by rounding; the codes may not."""
    first = codec.quantize(x)
    second = codec.quantize(codec.decode(first, x.shape))
    assert_bits_equal(second[0], first[0], "data")
    torch.testing.assert_close(second[1], first[1], rtol=3e-7, atol=0.0)


@pytest.mark.parametrize("block_rows", [1, 16])
@given(x=matrices())
@quick
def test_nvfp4_codes_are_kept_where_the_block_scale_is_normal(block_rows, x):
    amax = reference.amax(x)
    data, scale = reference.quantize_nvfp4(x, amax, block_rows)
    decoded = reference.dequantize_nvfp4(data, scale, amax, 448, torch.float32)[:, : x.shape[1]]
    again, scale_again = reference.quantize_nvfp4(decoded, amax, block_rows)
    normal = scale >= 0x08
    assert_bits_equal(scale_again[normal], scale[normal], "scale")
    by_byte = normal.repeat_interleave(8, 1)[:, : data.shape[1]]
    assert_bits_equal(again[by_byte], data[by_byte], "data")


OWN_SCALES = [c for c in CODECS if c.block and "nvfp4" not in c.name]


@pytest.mark.parametrize("codec", OWN_SCALES, ids=lambda c: c.name)
@given(x=matrices())
@quick
def test_rows_can_be_cut_at_block_borders(codec, x):
    rows = codec.block[0] * 2
    whole, top, rest = (codec.quantize(part) for part in (x, x[:rows], x[rows:]))
    assert_bits_equal(torch.cat((top[0], rest[0])), whole[0], "data")
    assert_bits_equal(torch.cat((top[1], rest[1])), whole[1], "scales")


@pytest.mark.parametrize("error", ["", "mae"])
@given(x=matrices())
@quick
def test_rows_of_nvfp4_can_be_cut_when_amax_is_given(error, x):
    amax = reference.amax(x)
    whole, top, rest = (
        reference.quantize_nvfp4(part, amax, 16, 256, error) for part in (x, x[:16], x[16:])
    )
    assert_bits_equal(torch.cat((top[0], rest[0])), whole[0], "data")
    assert_bits_equal(torch.cat((top[1], rest[1])), whole[1], "scales")
