"""The ops on CPU tensors of every layout: views are read in place, results equal the reference."""

import pytest
import torch

from qrole_kernels import cpu_tensors, ops, reference
from qrole_kernels.errors import ArgumentError
from tests.kernels.bitexact import assert_bits_equal

F32, BF16 = torch.float32, torch.bfloat16


def _numbers(rows, cols, dtype):
    """Magnitudes over many binades, with zeros of both signs, subnormals, NaN and infinities."""
    generator = torch.Generator().manual_seed(rows * 1000 + cols)
    exponents = torch.randint(-12, 13, (rows, cols), generator=generator)
    x = torch.randn(rows, cols, generator=generator) * torch.exp2(exponents.float())
    special = torch.tensor([0.0, -0.0, torch.nan, torch.inf, -torch.inf, 1e-40, 448.0, 6.0])
    pick = torch.randint(8, (rows, cols), generator=generator)
    rare = torch.rand(rows, cols, generator=generator) < 0.02
    return torch.where(rare, special[pick], x).to(dtype)


LAYOUTS = {
    "contiguous": lambda dtype: _numbers(67, 200, dtype),
    "transposed": lambda dtype: _numbers(200, 67, dtype).t(),
    "columns": lambda dtype: _numbers(67, 300, dtype)[:, 3:170],
    "every second row": lambda dtype: _numbers(100, 96, dtype)[::2],
    "every second column": lambda dtype: _numbers(40, 150, dtype)[:, ::2],
    "one row repeated": lambda dtype: _numbers(1, 70, dtype).expand(33, -1),
    "one column": lambda dtype: _numbers(50, 3, dtype)[:, 1:2],
    "one element": lambda dtype: _numbers(1, 1, dtype),
    "no rows": lambda dtype: _numbers(0, 64, dtype),
    "no columns": lambda dtype: _numbers(5, 0, dtype),
    "many rows": lambda dtype: _numbers(2000, 33, dtype),
}


FUNCTIONS = {
    "amax": lambda k, x: k.amax(x),
    "amax_rows": lambda k, x: k.amax_rows(x),
    "fp8": lambda k, x: k.quantize_fp8(x, torch.tensor(3.7), "e4m3"),
    "fp8_current": lambda k, x: k.quantize_fp8_current(x, "e5m2", True, 1e-3),
    "fp8_rows": lambda k, x: k.quantize_fp8_rows(x, "e4m3"),
    "fp8_block_1d": lambda k, x: k.quantize_fp8_block(x, "e4m3", 1, False),
    "fp8_block_2d": lambda k, x: k.quantize_fp8_block(x, "e5m2", 128, True, 1e-3),
    "mxfp8_rows": lambda k, x: k.quantize_mxfp8(x, "e4m3", 1, 32),
    "mxfp8_columns": lambda k, x: k.quantize_mxfp8(x, "e5m2", 32, 1),
    "mxfp8_2d": lambda k, x: k.quantize_mxfp8(x, "e4m3", 32, 32),
    "nvfp4_1d": lambda k, x: k.quantize_nvfp4(x, reference.amax(x), 1),
    "nvfp4_2d": lambda k, x: k.quantize_nvfp4(x, torch.tensor(50.0), 16, 256),
    "nvfp4_rows": lambda k, x: k.quantize_nvfp4(x, reference.amax_rows(x), 1),
    "nvfp4_4over6": lambda k, x: k.quantize_nvfp4(x, torch.tensor(50.0), 1, 256, "mae"),
    "mxfp4": lambda k, x: k.quantize_mxfp4(x, "even"),
}


def _tensors(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("dtype", [F32, BF16, torch.float16], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_quantize_any_layout(function, layout, dtype):
    x = LAYOUTS[layout](dtype)
    call = FUNCTIONS[function]
    given, expected = _tensors(call(ops, x)), _tensors(call(reference, x))
    for i, pair in enumerate(zip(given, expected, strict=True)):
        assert_bits_equal(*pair, f"output {i}")


VIEWS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t().contiguous().t(),
    "columns": lambda t: torch.cat((t, t), 1)[:, : t.shape[1]],
}


def _codes(rows, cols):
    generator = torch.Generator().manual_seed(rows + cols)
    return torch.randint(0, 256, (rows, cols), generator=generator, dtype=torch.uint8)


DECODERS = {
    "fp8": lambda k, v, d: k.dequantize_fp8(v(_codes(9, 70)), torch.tensor(0.3), "e4m3", d),
    "fp8_rows": lambda k, v, d: k.dequantize_fp8_rows(
        v(_codes(9, 70)), v(torch.linspace(0.1, 2, 9)[:, None]), "e5m2", d
    ),
    "fp8_block": lambda k, v, d: k.dequantize_fp8_block(
        v(_codes(130, 200)), v(torch.linspace(0.1, 2, 4).view(2, 2)), "e4m3", 128, d
    ),
    "mxfp8": lambda k, v, d: k.dequantize_mxfp8(
        v(_codes(35, 70)), v(_codes(35, 3)), "e4m3", 1, 32, d
    ),
    "mxfp8_columns": lambda k, v, d: k.dequantize_mxfp8(
        v(_codes(35, 70)), v(_codes(2, 70)), "e5m2", 32, 1, d
    ),
    "nvfp4": lambda k, v, d: k.dequantize_nvfp4(
        v(_codes(9, 35)), v(_codes(9, 5)), torch.tensor(3.0), 448, d
    ),
    "nvfp4_rows": lambda k, v, d: k.dequantize_nvfp4(
        v(_codes(9, 35)), v(_codes(9, 5)), torch.linspace(0.1, 2, 18)[::2], 256, d
    ),
    "mxfp4": lambda k, v, d: k.dequantize_mxfp4(v(_codes(9, 35)), v(_codes(9, 3)), d),
}


@pytest.mark.parametrize("dtype", [F32, BF16, torch.float16], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("decoder", DECODERS)
def test_dequantize_any_layout(decoder, view, dtype):
    given, expected = (DECODERS[decoder](k, VIEWS[view], dtype) for k in (ops, reference))
    assert_bits_equal(given, expected)


@pytest.mark.parametrize("view", VIEWS)
def test_hadamard_any_layout(view):
    x = VIEWS[view](_numbers(48, 64, BF16))
    assert_bits_equal(ops.hadamard16(x), reference.hadamard16(x))


def test_whole_rows_or_columns_are_read_in_place():
    x = _numbers(10, 64, F32)
    for readable in (x, x[2:], x[::3], x[:, 5:9], x.t(), x[:, 5:9].t(), x[::3].t()):
        assert cpu_tensors._readable(readable).data_ptr() == readable.data_ptr()
    for copied in (x[:, ::2], x[:1].expand(4, -1), x[:, :1].expand(-1, 4)):
        assert cpu_tensors._readable(copied).data_ptr() != copied.data_ptr()


def test_every_function_names_an_op():
    for name in cpu_tensors.__all__:
        assert callable(getattr(ops, name))


def test_dtypes_that_cannot_be_decoded_to():
    with pytest.raises(ArgumentError, match=r"dtype=torch.float64. Expected one of torch.float32"):
        ops.dequantize_fp8(_codes(2, 2), torch.tensor(1.0), "e4m3", torch.float64)
