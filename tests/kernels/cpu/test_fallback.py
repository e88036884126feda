"""Without llvmlite: the same names, signatures and bits, and one warning."""

import inspect
import subprocess
import sys

import pytest
import torch

from qrole_kernels import cpu, cpu_tensors
from qrole_kernels.cpu import fallback, host
from tests.kernels.bitexact import assert_bits_equal
from tests.kernels.cpu.matrices import DTYPES, KINDS
from tests.kernels.cpu.test_bit_identity import QUANTIZE, as_tuple, encoded


def test_names_and_signatures():
    assert host.__all__ == fallback.__all__ == cpu.__all__
    for name in cpu.__all__:
        ours, theirs = inspect.signature(getattr(host, name)), getattr(fallback, name)
        assert inspect.signature(theirs) == ours, name


@pytest.fixture
def on_fallback(monkeypatch):
    """The ops on tensors, over the fallback; small portions, so that there are several."""
    monkeypatch.setattr(fallback.memory, "_PORTION", 1)
    monkeypatch.setattr(cpu_tensors, "cpu", fallback)


def matrix(dtype: str) -> torch.Tensor:
    x = KINDS[3](torch.Generator().manual_seed(3), (300, 103)).to(DTYPES[dtype])
    return x[:, 2:101]


@pytest.mark.parametrize(
    "dtype", ["bf16", *[pytest.param(name, marks=pytest.mark.slow) for name in ("f32", "f16")]]
)
def test_same_bits(dtype, request):
    x = matrix(dtype)
    calls = [*QUANTIZE, ("quantize_fp8", torch.tensor(0.3), "e5m2")]
    calls += [("quantize_nvfp4", a, b) for a, b in ((torch.tensor(9.0), 16), (x[:, 0].float(), 1))]
    bits = torch.arange(x.numel()).to(torch.uint8).view(x.shape)
    calls.append(("quantize_nvfp4", torch.tensor(9.0), 1, 448, "", bits))
    calls.append(("quantize_nvfp4", torch.tensor(9.0), 16, 448, "mae"))
    compiled = [as_tuple(getattr(cpu_tensors, name)(x, *options)) for name, *options in calls]
    decoded = [getattr(cpu_tensors, name)(*given, x.dtype) for name, given in encoded()]
    transformed = cpu_tensors.hadamard16(matrix("bf16")[:, :96])
    request.getfixturevalue("on_fallback")
    for (name, *options), wanted in zip(calls, compiled, strict=True):
        for ours, theirs in zip(
            as_tuple(getattr(cpu_tensors, name)(x, *options)), wanted, strict=True
        ):
            assert_bits_equal(ours, theirs, name)
    for (name, given), wanted in zip(encoded(), decoded, strict=True):
        assert_bits_equal(getattr(cpu_tensors, name)(*given, x.dtype), wanted, name)
    assert_bits_equal(cpu_tensors.hadamard16(matrix("bf16")[:, :96]), transformed, "hadamard16")


WITHOUT_LLVMLITE = """
import sys, warnings
sys.modules["llvmlite"] = None
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "llvmlite":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
import ctypes
from qrole_kernels import cpu
assert not cpu.is_compiled()
x = (ctypes.c_float * 12)(*range(12))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        assert cpu.host_amax(ctypes.addressof(x), "f32", 3, 4, 4) == 11.0
        scales = (ctypes.c_float * 3)()
        cpu.host_amax_rows(ctypes.addressof(x), "f32", 3, 4, 4, ctypes.addressof(scales))
        assert list(scales) == [3.0, 7.0, 11.0]
assert [str(w.message)[:25] for w in caught] == ["llvmlite is not installed"], caught
assert caught[0].filename == "<string>"
"""


def test_one_warning():
    run = subprocess.run([sys.executable, "-c", WITHOUT_LLVMLITE], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
