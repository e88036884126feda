"""Which backend multiplies what on which device."""

import pytest
import torch

from qrole_kernels.cuda_backends import INTERPRETER, backends, scaled_mm_cuda
from qrole_kernels.operand import Operand

U8 = torch.uint8
OPERANDS = {
    "fp8": Operand("fp8_tensor", torch.zeros(16, 32, dtype=U8), torch.ones(())),
    "rows": Operand("fp8_rows", torch.zeros(16, 32, dtype=U8), torch.ones(16, 1)),
    "1x128": Operand("fp8_block_1d", torch.zeros(16, 32, dtype=U8), torch.ones(16, 1)),
    "128x128": Operand("fp8_block_2d", torch.zeros(16, 32, dtype=U8), torch.ones(1, 1)),
    "mxfp8": Operand("mxfp8", torch.zeros(16, 32, dtype=U8), torch.zeros(16, 1, dtype=U8)),
    "mxfp4": Operand("mxfp4", torch.zeros(16, 16, dtype=U8), torch.zeros(16, 1, dtype=U8)),
    "nvfp4": Operand(
        "nvfp4", torch.zeros(16, 16, dtype=U8), torch.zeros(16, 2, dtype=U8), torch.ones(())
    ),
}
FP8_E5M2 = Operand("fp8_tensor", torch.zeros(16, 32, dtype=U8), torch.ones(()), element="e5m2")
MXFP8_E5M2 = Operand(
    "mxfp8", torch.zeros(16, 32, dtype=U8), torch.zeros(16, 1, dtype=U8), element="e5m2"
)
BLOCK_E5M2 = Operand(
    "fp8_block_1d", torch.zeros(16, 32, dtype=U8), torch.ones(16, 1), element="e5m2"
)

FIRST = {
    # Compute capability 8.0, 8.6, 8.9, 9.0, 10.0, 10.3, 12.0.
    ("fp8", "fp8"): "emulation emulation torch torch torch torch torch",
    ("rows", "rows"): "emulation emulation torch torch torch torch torch",
    ("rows", "fp8"): "emulation emulation torch torch torch torch torch",
    ("1x128", "1x128"): "emulation emulation triton torch triton triton triton",
    ("1x128", "128x128"): "emulation emulation triton torch triton triton triton",
    ("128x128", "1x128"): "emulation emulation triton torch triton triton triton",
    ("mxfp8", "mxfp8"): "emulation emulation emulation emulation torch torch torch",
    ("mxfp4", "mxfp4"): "emulation emulation emulation emulation triton triton triton",
    ("nvfp4", "nvfp4"): "triton triton triton triton torch torch torch",
}
ARCHS = (80, 86, 89, 90, 100, 103, 120)


@pytest.mark.parametrize("pair", FIRST, ids=" x ".join)
def test_first_choice_by_compute_capability(pair):
    left, right = (OPERANDS[name] for name in pair)
    given = [backends(left, right, arch, (13, 0))[0] for arch in ARCHS]
    assert given == FIRST[pair].split()


@pytest.mark.parametrize("pair", FIRST, ids=" x ".join)
def test_torch_is_never_alone(pair):
    """What torch multiplies triton does too, for a torch that is older than that."""
    left, right = (OPERANDS[name] for name in pair)
    for arch in ARCHS:
        with_torch = backends(left, right, arch, (13, 0))
        assert backends(left, right, arch, None) == [b for b in with_torch if b != "torch"]
        assert with_torch[-1] == "emulation"
        assert ("torch" in with_torch) <= ("triton" in with_torch)


@pytest.mark.parametrize(
    ("left", "right", "arch", "first"),
    [
        (FP8_E5M2, OPERANDS["fp8"], 90, "torch"),
        (OPERANDS["fp8"], FP8_E5M2, 90, "torch"),
        (FP8_E5M2, FP8_E5M2, 90, "emulation"),
        (BLOCK_E5M2, OPERANDS["128x128"], 90, "triton"),
        (MXFP8_E5M2, OPERANDS["mxfp8"], 100, "triton"),
    ],
)
def test_e5m2(left, right, arch, first):
    assert backends(left, right, arch, (13, 0))[0] == first


@pytest.mark.parametrize(
    ("name", "arch", "cuda", "first"),
    [
        ("1x128", 90, (12, 8), "triton"),
        ("1x128", 90, (12, 9), "torch"),
        ("mxfp8", 100, (12, 6), "triton"),
        ("nvfp4", 100, (12, 8), "torch"),
        ("fp8", 90, (12, 6), "torch"),
    ],
)
def test_what_torchs_cuda_has_to_be(name, arch, cuda, first):
    assert backends(OPERANDS[name], OPERANDS[name], arch, cuda)[0] == first


def test_the_interpreter_runs_all_kernels():
    for name, operand in OPERANDS.items():
        assert backends(operand, operand, INTERPRETER, None)[0] == "triton", name


def test_high_precision_is_multiplied_elsewhere():
    x = Operand("high_precision", torch.zeros(4, 8))
    assert backends(x, x, 100, (13, 0)) == []


@pytest.mark.parametrize(
    ("version", "expected"), [("12.8", (12, 8)), ("13.0", (13, 0)), (None, None)]
)
def test_the_cuda_of_this_torch(monkeypatch, version, expected):
    monkeypatch.setattr(torch.version, "cuda", version)
    assert scaled_mm_cuda() == expected


def test_a_torch_without_a_public_scaled_matmul(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.delattr(torch.nn.functional, "scaled_mm")
    assert scaled_mm_cuda() is None
