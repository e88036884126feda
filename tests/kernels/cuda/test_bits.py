"""Every kernel against the reference, bit for bit, on inputs made to tell them apart."""

import pytest
import torch

from qrole_kernels import reference
from tests.kernels.bitexact import assert_bits_equal
from tests.kernels.cuda import adversarial

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
INPUTS = {
    "fp32": lambda special: adversarial.matrix(33, 131, F32, 0, special),
    "bf16": lambda special: adversarial.matrix(40, 256, BF16, 1, special),
    "bf16 transposed": lambda special: adversarial.matrix(131, 35, BF16, 2, special).t(),
    "fp16": lambda special: adversarial.matrix(5, 47, F16, 3, special),
}


TENSORS = {name: lambda make=make: make(False) for name, make in INPUTS.items()}
TENSORS["fp32 with specials"] = lambda: INPUTS["fp32"](True)


@pytest.fixture(params=INPUTS.values(), ids=INPUTS.keys())
def x(request):
    """A matrix that has infinities and NaN."""
    return request.param(True)


@pytest.fixture(params=TENSORS.values(), ids=TENSORS.keys())
def tensor(request):
    """For what depends on the amax of a whole tensor, which one infinity settles."""
    return request.param()


@pytest.fixture(params=["e4m3", "e5m2"])
def element(request):
    return request.param


def _assert_same(given, expected, what=""):
    given, expected = (t if isinstance(t, tuple) else (t,) for t in (given, expected))
    for i, (g, e) in enumerate(zip(given, expected, strict=True)):
        assert_bits_equal(g, e, f"{what} output {i}")


def test_amax(kernels, x):
    _assert_same(kernels.amax(x), reference.amax(x))
    _assert_same(kernels.amax_rows(x), reference.amax_rows(x))


def test_amax_of_nan_alone_is_zero(kernels):
    x = torch.full((3, 20), torch.nan)
    _assert_same(kernels.amax(x), torch.tensor(0.0))
    _assert_same(
        kernels.quantize_mxfp8(x, "e4m3", 1, 32), reference.quantize_mxfp8(x, "e4m3", 1, 32)
    )


@pytest.mark.parametrize("power_of_two", [False, True])
def test_fp8_scale(kernels, element, power_of_two):
    amax = adversarial.matrix(20, 20, F32).abs()
    amax[0, :4] = torch.tensor([1e-40, 3.4e38, 448.0, 1.3e-36])
    for epsilon, value_for_inf in ((0.0, 3.4028234663852886e38), (1e-3, 65504.0)):
        args = element, power_of_two, epsilon, value_for_inf
        _assert_same(kernels.fp8_scale(amax, *args), reference.fp8_scale(amax, *args))


@pytest.mark.parametrize("scale", [3.7, 2.0**120])
def test_fp8_given_scale(kernels, x, element, scale):
    scale = torch.tensor(scale)
    _assert_same(kernels.quantize_fp8(x, scale, element), reference.quantize_fp8(x, scale, element))


def test_fp8_current(kernels, tensor, element):
    for options in ((False, 0.0), (True, 1e3)):
        expected = reference.quantize_fp8_current(tensor, element, *options)
        _assert_same(kernels.quantize_fp8_current(tensor, element, *options), expected, options)
    data, _, scale_inv, _ = expected
    args = data, scale_inv, element, tensor.dtype
    _assert_same(kernels.dequantize_fp8(*args), reference.dequantize_fp8(*args))


def test_fp8_rows(kernels, x, element):
    data, scale_inv = expected = reference.quantize_fp8_rows(x, element)
    _assert_same(kernels.quantize_fp8_rows(x, element), expected)
    args = data, scale_inv, element, x.dtype
    _assert_same(kernels.dequantize_fp8_rows(*args), reference.dequantize_fp8_rows(*args))


@pytest.mark.parametrize("block_rows", [1, 128])
@pytest.mark.parametrize("options", [(True, 0.0), (False, 1e-2)])
def test_fp8_block(kernels, x, element, block_rows, options):
    args = x, element, block_rows, *options
    data, scale_inv = expected = reference.quantize_fp8_block(*args)
    _assert_same(kernels.quantize_fp8_block(*args), expected)
    args = data, scale_inv, element, block_rows, x.dtype
    _assert_same(kernels.dequantize_fp8_block(*args), reference.dequantize_fp8_block(*args))


@pytest.mark.parametrize("block", [(1, 32), (32, 1), (32, 32)])
def test_mxfp8(kernels, x, element, block):
    data, scale = expected = reference.quantize_mxfp8(x, element, *block)
    _assert_same(kernels.quantize_mxfp8(x, element, *block), expected)
    args = data, scale, element, *block, x.dtype
    _assert_same(kernels.dequantize_mxfp8(*args), reference.dequantize_mxfp8(*args))


@pytest.mark.parametrize("rule", ["rceil", "floor", "even"])
def test_mxfp4(kernels, x, rule):
    packed, scale = expected = reference.quantize_mxfp4(x, rule)
    _assert_same(kernels.quantize_mxfp4(x, rule), expected)
    args = packed, scale, x.dtype
    _assert_same(kernels.dequantize_mxfp4(*args), reference.dequantize_mxfp4(*args))


@pytest.mark.parametrize(("block_rows", "e4m3_max"), [(1, 448), (16, 448), (1, 256)])
def test_nvfp4(kernels, tensor, block_rows, e4m3_max):
    amax = reference.amax(tensor)
    args = tensor, amax, block_rows, e4m3_max
    packed, scale = expected = reference.quantize_nvfp4(*args)
    _assert_same(kernels.quantize_nvfp4(*args), expected)
    args = packed, scale, amax, e4m3_max, tensor.dtype
    _assert_same(kernels.dequantize_nvfp4(*args), reference.dequantize_nvfp4(*args))


@pytest.mark.parametrize("amax", [0.0, 1e-40, 1e-3, torch.inf])
def test_nvfp4_under_an_amax_that_is_not_the_tensors(kernels, amax):
    args = INPUTS["bf16"](True), torch.tensor(amax), 1
    _assert_same(kernels.quantize_nvfp4(*args), reference.quantize_nvfp4(*args))


@pytest.mark.parametrize(("block_rows", "error"), [(1, "mse"), (16, "mae")])
def test_nvfp4_four_over_six(kernels, tensor, block_rows, error):
    args = tensor, reference.amax(tensor), block_rows, 256, error
    _assert_same(kernels.quantize_nvfp4(*args), reference.quantize_nvfp4(*args))


@pytest.mark.parametrize("error", ["", "mae"])
def test_nvfp4_rows(kernels, x, error):
    amax = reference.amax_rows(x)
    packed, scale = expected = reference.quantize_nvfp4(x, amax, 1, 448, error)
    _assert_same(kernels.quantize_nvfp4(x, amax, 1, 448, error), expected)
    args = packed, scale, amax, 448, x.dtype
    _assert_same(kernels.dequantize_nvfp4(*args), reference.dequantize_nvfp4(*args))


@pytest.mark.parametrize("block_rows", [1, 16])
def test_nvfp4_stochastic(kernels, tensor, block_rows):
    generator = torch.Generator().manual_seed(4)
    bits = torch.randint(0, 256, tensor.shape, dtype=torch.uint8, generator=generator)
    args = tensor, reference.amax(tensor), block_rows, 448, "", bits
    _assert_same(kernels.quantize_nvfp4(*args), reference.quantize_nvfp4(*args))


@pytest.mark.parametrize("sign_mask", [0xD7E8, 0x0001])
@pytest.mark.parametrize("transposed", [False, True])
def test_hadamard(kernels, sign_mask, transposed):
    x = adversarial.matrix(*((48, 33) if transposed else (33, 144)), BF16, special=False)
    x = x.t() if transposed else x
    _assert_same(kernels.hadamard16(x, sign_mask), reference.hadamard16(x, sign_mask))


def test_hadamard_of_special_values(kernels):
    x = adversarial.matrix(8, 64, BF16)
    _assert_same(kernels.hadamard16(x), reference.hadamard16(x))


@pytest.mark.parametrize("shape", [(1, 1), (128, 4), (33, 37), (300, 70), (5, 256)])
@pytest.mark.parametrize("transposed", [False, True])
def test_scale_layouts(kernels, shape, transposed):
    scale = torch.arange(1, shape[0] * shape[1] + 1).to(torch.uint8).view(shape)
    scale = scale.t() if transposed else scale
    for multiples in ((128, 4), (4, 128)):
        _assert_same(kernels.pad_scales(scale, *multiples), reference.pad_scales(scale, *multiples))
    swizzled = reference.swizzle_scales(scale)
    _assert_same(kernels.swizzle_scales(scale), swizzled)
    _assert_same(kernels.unswizzle_scales(swizzled, *scale.shape), scale.contiguous())


def test_fp32_scales_can_be_laid_out_too(kernels):
    scale = torch.randn(130, 7)
    _assert_same(kernels.pad_scales(scale), reference.pad_scales(scale))
    _assert_same(kernels.swizzle_scales(scale), reference.swizzle_scales(scale))


def _all_bf16():
    numbers = torch.arange(1 << 16).to(torch.int16).view(BF16).view(256, 256)
    # numpy's maximum, hence the interpreter's, does not take the number over a signalling NaN.
    return torch.where(numbers.isnan(), torch.nan, numbers)


def test_every_bf16_number(kernels, element):
    x, scale = _all_bf16(), torch.tensor(1.0)
    _assert_same(kernels.quantize_fp8(x, scale, element), reference.quantize_fp8(x, scale, element))
    _assert_same(
        kernels.quantize_mxfp8(x, element, 1, 32), reference.quantize_mxfp8(x, element, 1, 32)
    )


def test_every_bf16_number_in_four_bits(kernels):
    x = _all_bf16()
    _assert_same(kernels.quantize_mxfp4(x, "rceil"), reference.quantize_mxfp4(x, "rceil"))
    amax = torch.tensor(2688.0)
    _assert_same(kernels.quantize_nvfp4(x, amax, 1), reference.quantize_nvfp4(x, amax, 1))


def test_every_code_decodes(kernels, element):
    codes, one = torch.arange(256, dtype=torch.uint8).view(8, 32), torch.tensor(1.0)
    args = codes, one, element, F32
    _assert_same(kernels.dequantize_fp8(*args), reference.dequantize_fp8(*args))
    scales = torch.arange(256, dtype=torch.uint8).view(-1, 1)
    args = codes.repeat(32, 1), scales, element, 1, 32, F32
    _assert_same(kernels.dequantize_mxfp8(*args), reference.dequantize_mxfp8(*args))
    packed = codes.repeat(32, 1).view(-1, 16)
    args = packed, torch.arange(512).to(torch.uint8).view(-1, 1), F32
    _assert_same(kernels.dequantize_mxfp4(*args), reference.dequantize_mxfp4(*args))


@pytest.mark.parametrize("shape", [(0, 64), (4, 0)])
def test_nothing_to_do(kernels, shape):
    x = torch.zeros(shape)
    _assert_same(kernels.amax(x), reference.amax(x))
    _assert_same(kernels.quantize_fp8_current(x, "e4m3"), reference.quantize_fp8_current(x, "e4m3"))
    _assert_same(kernels.quantize_fp8_rows(x, "e4m3"), reference.quantize_fp8_rows(x, "e4m3"))
    args = x, torch.tensor(1.0), 1
    _assert_same(kernels.quantize_nvfp4(*args), reference.quantize_nvfp4(*args))
    _assert_same(
        kernels.quantize_mxfp8(x, "e4m3", 32, 1), reference.quantize_mxfp8(x, "e4m3", 32, 1)
    )
