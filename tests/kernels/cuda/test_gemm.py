"""Products on tensor cores: triton's kernels in the interpreter, all there is on a GPU."""

import pytest
import torch

from qrole_kernels.cuda import torch_gemm, triton_gemm
from qrole_kernels.cuda.launch import architecture
from qrole_kernels.cuda_backends import Backend, backends, scaled_mm_cuda
from qrole_kernels.gemm import Operand, quantized_gemm
from tests.kernels.bitexact import assert_bits_equal
from tests.kernels.cuda import exact
from tests.kernels.test_gemm import PAIRINGS

F32, BF16 = torch.float32, torch.bfloat16
GEMMS = {Backend.TRITON: triton_gemm.gemm, Backend.TORCH: torch_gemm.gemm}


def _matrix(rows, cols, seed=0):
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed)).to(BF16)


@pytest.fixture(params=PAIRINGS.values(), ids=PAIRINGS.keys())
def pairing(request):
    return request.param


@pytest.fixture(params=[Backend.TRITON, pytest.param(Backend.TORCH, marks=pytest.mark.gpu)])
def product(request, device):
    """A function that multiplies by one of the backends on one of the devices."""

    def run(left, right, dtype, bias=None):
        left, right = exact.on(device, left), exact.on(device, right)
        able = backends(left, right, architecture(left.data.device), scaled_mm_cuda())
        if request.param not in able:
            assert device.type == "cuda", "the interpreter has all kernels"
            pytest.skip(f"{request.param} does not multiply these on this GPU")
        there = None if bias is None else bias.to(device)
        return GEMMS[request.param](left, right, dtype, there).cpu()

    return run


def _tolerance(device):
    """Of the sum of magnitudes: roundings of fp32, or what tensor cores keep of it."""
    return 2e-6 if device.type == "cpu" else 2e-4


@pytest.mark.parametrize(("m", "n", "k"), [(40, 24, 272), (130, 70, 31)])
def test_multiplies_what_the_operands_stand_for(product, device, pairing, m, n, k):
    (left, x), (right, w) = pairing[0](_matrix(m, k)), pairing[1](_matrix(n, k, seed=1))
    bias = torch.linspace(-3, 3, n)
    y = product(left, right, F32, bias)
    expected = x.double() @ w.double().t() + bias
    magnitude = x.double().abs() @ w.double().abs().t() + bias.abs()
    assert ((y - expected).abs() <= _tolerance(device) * magnitude).all()


@pytest.mark.parametrize("name", ["tensor", "mxfp8", "nvfp4"])
def test_the_result_is_rounded_once(product, name):
    pairing = PAIRINGS[name]
    left, right = pairing[0](_matrix(9, 64))[0], pairing[1](_matrix(7, 64, seed=1))[0]
    wide = product(left, right, F32)
    assert_bits_equal(product(left, right, BF16), wide.to(BF16))
    assert_bits_equal(product(left, right, torch.float16), wide.half())


@pytest.mark.parametrize("name", ["fp8_tensor", "fp8_block_1d", "mxfp8"])
def test_transposed_views(product, name):
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
    assert_bits_equal(product(left, right, F32), product(*contiguous, F32), "transposed")


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 64), (3, 0, 64), (3, 2, 0)])
def test_empty_sizes(product, pairing, m, n, k):
    left, right = pairing[0](_matrix(m, k))[0], pairing[1](_matrix(n, k, seed=1))[0]
    assert_bits_equal(product(left, right, BF16), torch.zeros(m, n, dtype=BF16))


@pytest.mark.parametrize("kinds", exact.PAIRS.values(), ids=exact.PAIRS.keys())
@pytest.mark.parametrize(("m", "n", "k"), [(40, 24, 272), (130, 70, 31), (257, 144, 160)])
@pytest.mark.parametrize("transposed", [False, True])
def test_exact_sums_give_the_emulations_bits(product, kinds, m, n, k, transposed):
    """Elements, scales and their layouts, factors, bias and rounding: all but the order of sums."""
    left = exact.operand(kinds[0], m, k, 0, transposed)
    right = exact.operand(kinds[1], n, k, 1, transposed)
    bias = torch.linspace(-3, 3, n)
    expected = quantized_gemm(*left.pack(), *right.pack(), BF16, bias)
    assert_bits_equal(product(left, right, BF16, bias), expected)
