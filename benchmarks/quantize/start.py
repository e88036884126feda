"""The first quantization of a fresh process, with an empty and with a filled kernel cache."""

import os
import statistics
import subprocess
import sys
import tempfile

_FIRST = """
import time
begin = time.perf_counter()
import ctypes
from qrole_kernels import cpu
rows, cols = 64, 1024
x = (ctypes.c_uint16 * (rows * cols))(*range(rows * cols // 2))
codes, scales = (ctypes.c_uint8 * (rows * cols))(), (ctypes.c_uint8 * (rows * cols // 16))()
source = ctypes.addressof(x), "bf16", rows, cols, cols
begun = time.perf_counter()
amax = cpu.host_amax(*source, threads=1)
out = ctypes.addressof(codes), ctypes.addressof(scales)
cpu.host_quantize_nvfp4(*source, amax, 1, 448, *out, threads=1)
print(time.perf_counter() - begin)
"""


def first_quantization(runs: int) -> dict[str, float]:
    """Median seconds from the first import to the first NVFP4 result, imports included."""
    cold, warm = [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "QROLE_CACHE_DIR": folder}
            for times in (cold, warm):
                command = [sys.executable, "-c", _FIRST]
                done = subprocess.run(command, env=environment, check=True, capture_output=True)
                times.append(float(done.stdout))
    return {"without_cache": statistics.median(cold), "with_cache": statistics.median(warm)}
