"""Known answers of element casts, stochastic rounding and random bits."""

import re

import torch

from qrole_kernels import formats
from qrole_kernels.philox import philox4x32_10
from qrole_kernels.reference.elements import (
    decode_e2m1,
    decode_e8m0,
    decode_fp8,
    encode_e2m1,
    encode_e2m1_stochastic,
    encode_e8m0_up,
    encode_fp8,
    reciprocal_e8m0,
)
from tests.kernels import golden
from tests.kernels.bitexact import assert_bits_equal
from tests.kernels.nearest import nearest

FORMATS = {
    **formats.ELEMENT_FORMATS,
    "e2m3": formats.ElementFormat("e2m3", 2, 3, 1, 7.5, 0x1F, nan_cast=0x1F),
    "e3m2": formats.ElementFormat("e3m2", 3, 2, 3, 28.0, 0x1F, nan_cast=0x1F),
}
"""The two 6-bit formats test the table's rules; no tensor format uses them."""


@golden.cases("cast_elements_f32")
def test_element_casts(case):
    x = case["input"]
    assert_bits_equal(encode_fp8(x, "e4m3"), case["e4m3_satfinite"], "e4m3")
    assert_bits_equal(encode_fp8(x, "e5m2"), case["e5m2_satfinite"], "e5m2")
    assert_bits_equal(encode_e2m1(x), case["e2m1_satfinite"], "e2m1")
    for name in ("e4m3", "e5m2", "e2m1", "e2m3", "e3m2"):
        assert_bits_equal(nearest(x, FORMATS[name]), case[f"{name}_satfinite"], name)
    for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        # Saturation is the only difference of the other CUDA mode; torch has one mode per format.
        saturated, other = case[f"{name}_satfinite"], case[f"{name}_nosat"]
        in_range = decode_fp8(other, name).isfinite()
        assert_bits_equal(saturated[in_range], other[in_range], name)
        recorded = case["torch213_cpu_" + str(dtype).removeprefix("torch.float8_")]
        assert_bits_equal(x.to(dtype).view(torch.uint8), recorded, str(dtype))


@golden.cases("cast_e8m0_f32")
def test_e8m0(case):
    x, codes = case["input"], case["decode_input"]
    assert_bits_equal(encode_e8m0_up(x), case["e8m0_rp_satfinite"], "round up")
    assert_bits_equal(decode_e8m0(codes), case["decode_f32"], "decode")
    assert_bits_equal(reciprocal_e8m0(codes), case["reciprocal_f32"], "reciprocal")
    truncated = (x.view(torch.int32) >> 23).clamp(max=254).to(torch.uint8)
    truncated = truncated.masked_fill(x.isnan(), 0xFF)
    assert_bits_equal(truncated, case["e8m0_rz_satfinite"], "the power of two not above")
    # torch rounds to nearest, which is why the scales have their own rule.
    assert not torch.equal(case["torch213_cpu_e8m0fnu"], case["e8m0_rp_satfinite"])


@golden.cases("decode_tables")
def test_decode_tables(case):
    code = case["code"]
    assert_bits_equal(decode_fp8(code, "e4m3"), case["e4m3_f32"], "e4m3")
    assert_bits_equal(decode_fp8(code, "e5m2"), case["e5m2_f32"], "e5m2")
    assert_bits_equal(decode_e2m1(code & 0xF), case["e2m1_lo_f32"], "low nibble")
    assert_bits_equal(decode_e2m1(code >> 4), case["e2m1_hi_f32"], "high nibble")


@golden.cases("nvfp4_sr_table")
def test_stochastic_rounding_of_every_random_byte(case):
    x = case["input"][:, None].expand(-1, 256).contiguous()
    random_bits = torch.arange(256).to(torch.uint8).expand(x.shape)
    assert_bits_equal(encode_e2m1_stochastic(x, random_bits), case["code"], "codes")


@golden.cases("philox4x32_10")
def test_philox(case):
    for name, words in case.items():
        match = re.fullmatch(r"seed(\d+)_sub(\d+)_off(\d+)", name)
        assert match, name
        seed, subsequence, offset = map(int, match.groups())
        given = philox4x32_10(seed, torch.tensor(subsequence), torch.arange(4) + offset)
        assert_bits_equal(given.flatten().to(torch.int32), words, name)
