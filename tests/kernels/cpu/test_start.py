"""What importing and starting costs: no torch, no numpy."""

import subprocess
import sys

FIRST_QUANTIZE = """
import ctypes, sys
from qrole_kernels.cpu import host_quantize_mxfp8
x = (ctypes.c_float * 64)(*range(64))
out, scale = (ctypes.c_uint8 * 64)(), (ctypes.c_uint8 * 2)()
places = [ctypes.addressof(a) for a in (out, scale)]
host_quantize_mxfp8(ctypes.addressof(x), "f32", 2, 32, 32, "e4m3", 1, 32, *places)
assert list(scale) == [124, 125], list(scale)
assert out[1] == 0x50, out[1]
loaded = {"torch", "numpy", "numba"} & set(sys.modules)
assert not loaded, loaded
"""


def test_quantizing_needs_neither_torch_nor_numpy():
    run = subprocess.run([sys.executable, "-c", FIRST_QUANTIZE], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
