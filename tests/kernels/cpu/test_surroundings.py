"""What a caller may do around the kernels: memory that ends where it ends, other FP modes."""

import ctypes
import mmap
import subprocess
import sys

import pytest
import torch

from qrole_kernels import cpu_tensors, reference
from tests.kernels.bitexact import assert_bits_equal
from tests.kernels.cpu.matrices import KINDS
from tests.kernels.cpu.test_bit_identity import QUANTIZE, as_tuple

PAGE = mmap.PAGESIZE


class Guarded:
    """Memory whose last byte is followed by a page that nobody may touch."""

    def __init__(self, nbytes: int) -> None:
        pages = -(-nbytes // PAGE)
        self._map = mmap.mmap(-1, (pages + 1) * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(start + pages * PAGE), PAGE, 0) == 0
        self.address = start + pages * PAGE - nbytes


def run_every_kernel_to_the_edge() -> None:
    """Every entry point on ragged matrices whose memory ends at a forbidden page."""
    from qrole_kernels import cpu

    for dtype, size in (("f32", 4), ("bf16", 2)):
        for m, k in ((1, 1), (3, 33), (17, 100), (40, 545)):
            across = [-(-k // n) for n in (2, 16, 32, 128)]
            src, wide = Guarded(m * k * size), Guarded(m * k)
            rows, packed = Guarded(m * 4), Guarded(m * across[0])
            s16, s32 = Guarded(m * across[1]), Guarded(m * across[2])
            columns, square = Guarded(-(-m // 32) * k), Guarded(-(-m // 32) * across[2])
            line, tile = Guarded(m * across[3] * 4), Guarded(-(-m // 128) * across[3] * 4)
            x = src.address, dtype, m, k, k
            turned = src.address, dtype, k, m, 1
            cpu.host_amax(*x)
            cpu.host_amax_rows(*x, rows.address)
            amax = rows.address
            mx = (((1, 32), s32), ((32, 1), columns), ((32, 32), square))
            element = "e4m3"
            cpu.host_quantize_fp8(*x, 2.0, element, wide.address)
            cpu.host_quantize_fp8(*turned, 2.0, element, wide.address, col_stride=k)
            cpu.host_quantize_fp8_rows(*x, element, wide.address, rows.address)
            for block, scale in ((1, line), (128, tile)):
                options = element, block, True, 0.0
                cpu.host_quantize_fp8_block(*x, *options, wide.address, scale.address)
                given = wide.address, m, k, scale.address
                cpu.host_dequantize_fp8_block(*given, element, block, dtype, src.address)
            for block, scale in mx:
                cpu.host_quantize_mxfp8(*x, element, *block, wide.address, scale.address)
                given = wide.address, m, k, scale.address
                cpu.host_dequantize_mxfp8(*given, element, *block, dtype, src.address)
            cpu.host_dequantize_fp8(wide.address, m, k, 2.0, element, dtype, src.address)
            given = wide.address, m, k, rows.address
            cpu.host_dequantize_fp8_rows(*given, element, dtype, src.address)
            cpu.host_quantize_mxfp4(*x, "even", packed.address, s32.address)
            given = packed.address, m, k, s32.address
            cpu.host_dequantize_mxfp4(*given, dtype, src.address)
            out = packed.address, s16.address
            for block_rows in (1, 16):
                cpu.host_quantize_nvfp4(*x, 3.0, block_rows, 448, *out, random_bits=wide.address)
                cpu.host_quantize_nvfp4(*x, 3.0, block_rows, 448, *out, four_over_six="mae")
                cpu.host_quantize_nvfp4(*x, 3.0, block_rows, 448, *out)
            cpu.host_quantize_nvfp4_rows(*x, amax, 448, *out)
            given = packed.address, m, k, s16.address
            cpu.host_dequantize_nvfp4(*given, 3.0, 448, dtype, src.address)
            cpu.host_dequantize_nvfp4_rows(*given, amax, 448, dtype, src.address)
    bf16, result = Guarded(5 * 48 * 2), Guarded(5 * 48 * 2)
    cpu.host_hadamard16(bf16.address, 5, 48, 0xD7E8, result.address)
    sys.stdout.write("reached the end\n")


def test_nothing_outside_the_tensors_is_touched():
    command = [sys.executable, "-c", f"import {__name__} as t; t.run_every_kernel_to_the_edge()"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stdout == "reached the end\n", (run.returncode, run.stderr[-2000:])


def test_the_guard_guards():
    code = f"import {__name__} as t, ctypes; ctypes.string_at(t.Guarded(7).address, 8)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert run.returncode < 0


@pytest.fixture
def flushing_subnormals():
    if not torch.set_flush_denormal(True):
        pytest.xfail("this processor can't flush subnormals")
    yield
    torch.set_flush_denormal(False)


def test_bits_do_not_depend_on_the_callers_fp_mode(request):
    x = KINDS[2](torch.Generator().manual_seed(5), (200, 256))
    calls = [*QUANTIZE, ("quantize_nvfp4", torch.tensor(2e-38), 1)]
    wanted = [as_tuple(getattr(reference, name)(x, *options)) for name, *options in calls]
    data, scale = wanted[-1]
    decoded = reference.dequantize_nvfp4(data, scale, calls[-1][1], 448, torch.float32)
    request.getfixturevalue("flushing_subnormals")
    assert (torch.tensor(1e-39) * 1.0).item() == 0.0
    for (name, *options), outputs in zip(calls, wanted, strict=True):
        if name == "quantize_fp8_current":
            continue  # its scale comes from torch
        given = as_tuple(getattr(cpu_tensors, name)(x, *options))
        for ours, theirs in zip(given, outputs, strict=True):
            assert_bits_equal(ours, theirs, f"{name} {options}")
    given = cpu_tensors.dequantize_nvfp4(data, scale, calls[-1][1], 448, torch.float32)
    assert_bits_equal(given, decoded, "decoded")
    assert (torch.tensor(1e-39) * 1.0).item() == 0.0
