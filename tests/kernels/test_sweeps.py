"""Every bf16 pattern through every format, against the definitions written in fp64 or exactly."""

import math

import pytest
import torch
from torch import Tensor

from qrole_kernels import formats, reference
from qrole_kernels.reference.elements import encode_e2m1, encode_fp8
from tests.kernels.bitexact import assert_bits_equal
from tests.kernels.nearest import nearest

ALL_BF16 = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16)
FLOAT32_MAX = torch.finfo(torch.float32).max


def one_element_blocks(dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Every pattern in a row of its own (65536, 1)."""
    return ALL_BF16.view(-1, 1).to(dtype)


def ceil_log2(a: Tensor, divisor: float) -> Tensor:
    """The exact ceil(log2(a / divisor)) of positive finite values."""
    scaled = [math.frexp(v / divisor) for v in a.double().flatten().tolist()]
    exponents = [e - 1 if m == 0.5 else e for m, e in scaled]
    return torch.tensor(exponents).view(a.shape)


@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
def test_fp8_cast(element):
    expected = nearest(ALL_BF16, formats.FP8_FORMATS[element])
    assert_bits_equal(encode_fp8(ALL_BF16.float(), element), expected)


def test_e2m1_cast():
    assert_bits_equal(encode_e2m1(ALL_BF16.float()), nearest(ALL_BF16, formats.E2M1))


@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
def test_mxfp8(element):
    x = one_element_blocks()
    data, scale = reference.quantize_mxfp8(x, element, 1, 32)
    form = formats.FP8_FORMATS[element]
    expected = _e8m0(x, ceil_log2, form.max)
    assert_bits_equal(scale, expected, "scale")
    factor = torch.exp2(127.0 - expected.double())
    # An infinity times a small factor stays one.
    scaled = torch.where(x.isfinite(), x.double() * factor, x.double())
    assert_bits_equal(data, nearest(scaled, form), "data")


def _e8m0(x, exponent, divisor):
    """The scale byte of one-element blocks: NaN counts as zero, inf as more than everything."""
    a = x.double().abs()
    usable = a.isfinite() & (a > 0)
    safe = torch.where(usable, a, 1.0)
    byte = (exponent(safe, divisor) + 127).clamp(0, 254).masked_fill(~usable, 0)
    return byte.masked_fill(a.isinf(), 254).to(torch.uint8)


def test_mxfp4_rceil():
    x = one_element_blocks()
    data, scale = reference.quantize_mxfp4(x, "rceil")
    expected = _e8m0(x, ceil_log2, 6.0)
    assert_bits_equal(scale, expected, "scale")
    factor = torch.exp2(127.0 - expected.double())
    scaled = torch.where(x.isfinite(), x.double() * factor, x.double())
    assert_bits_equal(data, nearest(scaled, formats.E2M1), "data")


@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
def test_fp8_rows(element):
    """A division in fp64 that is rounded to fp32 is the fp32 division."""
    x = one_element_blocks()
    data, scale_inv = reference.quantize_fp8_rows(x, element)
    form = formats.FP8_FORMATS[element]
    a = x.double().abs()
    scale = (form.max / a).clamp(max=FLOAT32_MAX).float().masked_fill((a == 0) | ~a.isfinite(), 1.0)
    assert_bits_equal(scale_inv, (1.0 / scale.double()).float(), "scale_inv")
    assert_bits_equal(data, nearest((x.double() * scale).float(), form), "data")


@pytest.mark.parametrize("amax", [FLOAT32_MAX, 1e30, 2688.0, 6.0, 1.0, 3e-5, 1e-30, 1e-40])
def test_nvfp4(amax):
    x = one_element_blocks()
    data, scale = reference.quantize_nvfp4(x, torch.tensor(amax), 1)
    a = x.double().abs().nan_to_num(nan=0.0, posinf=math.inf)
    s_enc = _fp32(2688.0 / torch.tensor(amax).double())
    sixth = _fp32(torch.tensor(1.0).double() / 6)
    expected = nearest(_fp32(a * _fp32(s_enc * sixth)), formats.E4M3)
    assert_bits_equal(scale, expected, "scale")
    values = torch.tensor([formats.E4M3.value(c) for c in range(0x7F)]).double()
    inverse = _fp32(1.0 / _fp32(values[expected.int()] * _fp32(1.0 / s_enc)))
    codes = nearest((x.double() * inverse).float(), formats.E2M1)
    assert_bits_equal(data, codes, "data")


def _fp32(x: Tensor) -> Tensor:
    """Round fp64 to fp32, largest value instead of infinity."""
    return x.float().clamp(max=FLOAT32_MAX).double()
