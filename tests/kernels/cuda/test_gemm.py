"""Products on tensor cores: the kernels' arithmetic in the interpreter, the same on a GPU."""

import pytest
import torch

from qrole_kernels.cuda.gemm import gemm, supports
from qrole_kernels.gemm import Operand
from tests.kernels.bitexact import assert_bits_equal
from tests.kernels.test_gemm import PAIRINGS

F32, BF16 = torch.float32, torch.bfloat16


def _matrix(rows, cols, seed=0):
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed)).to(BF16)


@pytest.fixture(params=PAIRINGS.values(), ids=PAIRINGS.keys())
def pairing(request):
    return request.param


def _on(device, operand):
    """The operand on the device, its views still views."""
    moved = dict(vars(operand))
    for name in ("data", "scale", "amax"):
        if moved[name] is not None:
            moved[name] = moved[name].to(device)
    return Operand(**moved)


def _product(device, left, right, dtype, bias=None):
    left, right = _on(device, left), _on(device, right)
    if not supports(left, right):
        assert device.type == "cuda", "the interpreter has all kernels"
        pytest.skip("this GPU has no instruction for it")
    bias = None if bias is None else bias.to(device)
    return gemm(left, right, dtype, bias).cpu()


def _tolerance(device):
    """Of the sum of magnitudes: roundings of fp32, or what tensor cores keep of it."""
    return 2e-6 if device.type == "cpu" else 2e-4


@pytest.mark.parametrize(("m", "n", "k"), [(40, 24, 272), (130, 70, 31)])
def test_multiplies_what_the_operands_stand_for(device, pairing, m, n, k):
    (left, x), (right, w) = pairing[0](_matrix(m, k)), pairing[1](_matrix(n, k, seed=1))
    bias = torch.linspace(-3, 3, n)
    y = _product(device, left, right, F32, bias)
    exact = x.double() @ w.double().t() + bias
    magnitude = x.double().abs() @ w.double().abs().t() + bias.abs()
    assert ((y - exact).abs() <= _tolerance(device) * magnitude).all()


@pytest.mark.parametrize("name", ["tensor", "mxfp8", "nvfp4"])
def test_the_result_is_rounded_once(device, name):
    pairing = PAIRINGS[name]
    left, right = pairing[0](_matrix(9, 64))[0], pairing[1](_matrix(7, 64, seed=1))[0]
    wide = _product(device, left, right, F32)
    assert_bits_equal(_product(device, left, right, BF16), wide.to(BF16))
    assert_bits_equal(_product(device, left, right, torch.float16), wide.half())


@pytest.mark.parametrize("name", ["fp8_tensor", "fp8_block_1d", "mxfp8"])
def test_transposed_views(device, name):
    """Column-wise data enter as views whose columns are contiguous."""
    generator = torch.Generator().manual_seed(0)

    def operand(rows, k):
        codes = torch.randint(0, 0x7F, (k, rows), dtype=torch.uint8, generator=generator)
        scale = {
            "fp8_tensor": torch.tensor(0.5),
            "fp8_block_1d": torch.rand(-(-k // 128), rows, generator=generator).t(),
            "mxfp8": torch.randint(110, 140, (-(-k // 32), rows), dtype=torch.uint8).t(),
        }[name]
        return Operand(name, codes.t(), scale)

    left, right = operand(20, 160), operand(12, 160)
    contiguous = (Operand(name, o.data.contiguous(), o.scale.contiguous()) for o in (left, right))
    assert_bits_equal(
        _product(device, left, right, F32), _product(device, *contiguous, F32), "transposed"
    )


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 64), (3, 0, 64), (3, 2, 0)])
def test_empty_sizes(device, pairing, m, n, k):
    left, right = pairing[0](_matrix(m, k))[0], pairing[1](_matrix(n, k, seed=1))[0]
    assert_bits_equal(_product(device, left, right, BF16), torch.zeros(m, n, dtype=BF16))


def test_two_operands_in_high_precision_have_no_kernel_here():
    x = Operand("high_precision", _matrix(4, 8))
    assert not supports(x, x)
