"""Launching, recording, and what is refused."""

import subprocess
import sys

import pytest
import torch
import triton

from qrole_kernels import cuda
from qrole_kernels.cuda.aot import compile_named
from qrole_kernels.cuda.launch import record
from qrole_kernels.errors import ArgumentError, KernelError

X = torch.ones(4, 32)


def test_triton_is_imported_by_this_package_alone():
    """It exists on Linux only."""
    code = (
        "import sys, qrole_kernels.ops, qrole_kernels.gemm, qrole_kernels.cpu;"
        "assert 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_cpu_tensor_is_refused_where_kernels_are_compiled(monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(ArgumentError) as caught:
        cuda.quantize_mxfp8(X, "e4m3", 1, 32)
    assert str(caught.value) == (
        "Given a tensor on cpu. Expected a tensor on a CUDA device. "
        "Move it there, or set TRITON_INTERPRET=1 before the first import of triton."
    )


def test_the_interpreter_has_nothing_to_compile(monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    with pytest.raises(KernelError) as caught:
        compile_named("mxfp4", 100)
    assert str(caught.value) == (
        "Given TRITON_INTERPRET=1. Expected kernels to compile. "
        "Unset it before the first import of triton."
    )


def test_recorded_launches_are_not_run():
    x = torch.full((4, 32), 3.0, device="meta")
    with record(100) as recording:
        data, scale = cuda.quantize_mxfp8(x, "e4m3", 1, 32)
    assert (data.shape, scale.shape) == ((4, 32), (4, 1))
    (launch,) = recording.launches
    assert launch.arguments["x"] is x
    assert launch.constants["ARCH"] == 100
    assert launch.programs == 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: cuda.amax(X[0]), "a tensor of shape (32,)"),
        (lambda: cuda.quantize_fp8(X.int(), torch.tensor(1.0), "e4m3"), "a tensor of torch.int32"),
        (lambda: cuda.quantize_fp8_current(X, "e3m4"), "element='e3m4'"),
        (lambda: cuda.quantize_fp8(X, torch.tensor(1.0), "e3m4"), "element='e3m4'"),
        (lambda: cuda.quantize_fp8_block(X, "e4m3", 64), "block_rows=64"),
        (lambda: cuda.quantize_mxfp8(X, "e4m3", 1, 16), "(block_rows, block_cols)=(1, 16)"),
        (lambda: cuda.quantize_mxfp4(X, "ceil"), "rule='ceil'"),
        (lambda: cuda.quantize_nvfp4(X, torch.ones(4), 16), "one amax per row with block_rows=16"),
        (lambda: cuda.quantize_nvfp4(X, torch.ones(3), 1), "amax of shape (3,)"),
        (
            lambda: cuda.quantize_nvfp4(X, torch.ones(()), 1, 448, "mae", X.byte()),
            "random_bits together with four_over_six",
        ),
        (lambda: cuda.hadamard16(X.bfloat16()[:, :8]), "shape (4, 8)"),
        (
            lambda: cuda.dequantize_fp8(X.byte(), torch.ones(()), "e4m3", torch.float64),
            "dtype=torch.float64",
        ),
        (
            lambda: cuda.dequantize_fp8(X.byte(), torch.ones(()), "e3m4", torch.float32),
            "element='e3m4'",
        ),
        (
            lambda: cuda.dequantize_mxfp8(X.byte(), X.byte(), "e4m3", 1, 32, X.dtype),
            "scale of shape (4, 32)",
        ),
        (lambda: cuda.unswizzle_scales(X.byte().flatten(), 4, 32), "128 swizzled scales"),
    ],
)
def test_wrong_arguments_are_refused_as_by_the_reference(call, text):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert text in caught.value.given
