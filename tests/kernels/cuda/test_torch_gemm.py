"""The calls of torch's scaled matmul: accepted by torch, and right by what cuBLAS documents."""

from dataclasses import replace

import pytest
import torch

from qrole_kernels import gemm
from qrole_kernels.cuda import torch_gemm
from qrole_kernels.cuda.finish import finish
from qrole_kernels.cuda_backends import Backend, backends
from qrole_kernels.gemm import quantized_gemm
from tests.kernels.bitexact import assert_bits_equal
from tests.kernels.cuda import cublas, exact

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
SIZES = [(40, 24, 272), (130, 70, 31), (1, 3, 32), (257, 144, 608)]
ARCHS = (90, 100)
NAMES = [
    name
    for name, (left, right) in exact.PAIRS.items()
    if any(
        Backend.TORCH in backends(exact.operand(left, 1, 1), exact.operand(right, 1, 1), a, (13, 0))
        for a in ARCHS
    )
]


@pytest.fixture(params=NAMES)
def kinds(request):
    """What the operands of a pairing are that torch multiplies on some device."""
    return exact.PAIRS[request.param]


@pytest.fixture(params=SIZES, ids=lambda size: "x".join(map(str, size)))
def size(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["", "transposed"])
def pair(request, kinds, size):
    """Operands (M, K) and (N, K)."""
    m, n, k = size
    left = exact.operand(kinds[0], m, k, 0, request.param)
    return left, exact.operand(kinds[1], n, k, 1, request.param)


def _emulated(left, right, dtype, bias=None):
    return quantized_gemm(*left.pack(), *right.pack(), dtype, bias)


META = torch.device("meta")
"""torch checks what is there as it checks what is on CUDA."""


def test_torch_accepts_the_call(pair):
    """By its own checks of shapes, strides, dtypes and scale layouts."""
    left, right = (exact.on(META, operand) for operand in pair)
    assert (left.data.stride(), right.scale.stride()) == (
        pair[0].data.stride(),
        pair[1].scale.stride(),
    )
    sums = torch_gemm.multiply(left, right)
    assert (sums.shape, sums.dtype) == ((left.shape[0], right.shape[0]), F32)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("fp8_tensor", {"columns": 1}, "to be divisible by 16"),
        ("fp8_tensor", {"rows": 1}, "of mat2 to be divisible by 16"),
        ("fp8_block_1d", {"scale": lambda o: o.scale}, "1x128 blockwise scaling"),
        ("mxfp8", {"scale": lambda o: o.scale.view(torch.float8_e8m0fnu)}, "for MX scaling"),
        ("nvfp4", {"swizzle": torch_gemm.SwizzleType.NO_SWIZZLE}, "NV scaling"),
    ],
)
def test_torch_would_refuse_another_layout(monkeypatch, name, change, message):
    operand = exact.on(META, exact.operand(name, 40, 264))
    monkeypatch.setitem(torch_gemm.LAYOUTS, name, replace(torch_gemm.LAYOUTS[name], **change))
    with pytest.raises(RuntimeError, match=message):
        torch_gemm.multiply(operand, operand)


def test_the_documented_arithmetic_gives_the_emulations_bits(monkeypatch, pair):
    monkeypatch.setattr(torch_gemm, "scaled_mm", cublas.scaled_mm)
    bias = torch.linspace(-3, 3, pair[1].shape[0])
    for dtype, addend in ((F32, None), (F32, bias), (BF16, bias), (F16, None)):
        y = torch_gemm.gemm(*pair, dtype, addend)
        assert_bits_equal(y, _emulated(*pair, dtype, addend), str(dtype))


@pytest.mark.parametrize("name", ["tensor", "tensor e5m2", "rows", "rows x tensor"])
def test_torchs_own_arithmetic_gives_the_emulations_bits(name):
    """On the CPU, where torch has these too."""
    left, right = (exact.operand(kind, 33, 40, i) for i, kind in enumerate(exact.PAIRS[name]))
    bias = torch.linspace(-3, 3, 33)
    assert_bits_equal(
        torch_gemm.gemm(left, right, BF16, bias), _emulated(left, right, BF16, bias), name
    )


def test_data_that_start_anywhere_are_copied(monkeypatch):
    """Addresses have to be multiples of 16."""
    monkeypatch.setattr(torch_gemm, "scaled_mm", cublas.scaled_mm)
    whole = exact.operand("fp8_tensor", 32, 32)
    moved = torch.empty(32 * 32 + 1, dtype=torch.uint8)[1:].view(32, 32).copy_(whole.data)
    y = torch_gemm.gemm(replace(whole, data=moved), whole, F32)
    assert_bits_equal(y, _emulated(whole, whole, F32))


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_empty_sizes_need_no_product(kinds, empty):
    m, n, k = (0 if i == empty else 32 for i in range(3))
    left, right = exact.operand(kinds[0], m, k), exact.operand(kinds[1], n, k)
    bias = torch.linspace(-3, 3, n)
    y = torch_gemm.gemm(left, right, BF16, bias)
    assert_bits_equal(y, bias.to(BF16).expand(m, n).contiguous())


@pytest.mark.parametrize("name", ["rows", "rows x tensor", "block 1d x 1d", "nvfp4 rows"])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("bias_dtype", [None, F32, BF16])
def test_the_ending_is_the_emulations(device, monkeypatch, name, dtype, bias_dtype):
    """Of sums that are no integers, whose factors and bias round at every step."""
    m, n, k = 37, 150, 128
    left, right = (exact.operand(o, r, k) for o, r in zip(exact.PAIRS[name], (m, n), strict=True))
    sums = 100 * torch.randn(m, n + 10, generator=torch.Generator().manual_seed(0))[:, :n]
    bias = None if bias_dtype is None else torch.linspace(-9, 7, n).to(bias_dtype)
    if "block" in name:
        left = replace(left, scale=1.1 * left.scale)
    for op in ("matmul_f32", "matmul_fp8_block"):
        monkeypatch.setattr(f"qrole_kernels.ops.{op}", lambda *_: sums.clone())
    expected = _emulated(left, right, dtype, bias)
    there = None if bias is None else bias.to(device)
    y = finish(sums.to(device), exact.on(device, left), exact.on(device, right), dtype, there)
    assert_bits_equal(y, expected)


@pytest.mark.parametrize(
    ("arch", "cuda", "first"),
    [(90, (13, 0), Backend.TORCH), (90, None, Backend.TRITON), (80, (13, 0), Backend.EMULATION)],
)
def test_the_op_multiplies_by_what_comes_first(monkeypatch, arch, cuda, first):
    called = []
    monkeypatch.setattr("qrole_kernels.cuda.launch.architecture", lambda _: arch)
    monkeypatch.setattr("qrole_kernels.cuda_backends.scaled_mm_cuda", lambda: cuda)
    for backend in (Backend.TORCH, Backend.TRITON):
        module = f"qrole_kernels.cuda.{backend}_gemm"
        monkeypatch.setattr(f"{module}.gemm", lambda *_, name=backend: called.append(name))
    monkeypatch.setattr(gemm, "quantized_gemm", lambda *_: called.append(Backend.EMULATION))
    operand = exact.operand("fp8_tensor", 16, 16)
    gemm._on_cuda(*operand.pack(), *operand.pack(), BF16, None)
    assert called == [first]
