"""How fast this machine encodes and writes, measured in a few milliseconds, without the disk."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import IO

from qrole.checkpoint.encode import ENCODERS, ROW_STEP, Rows
from qrole.checkpoint.memory import Buffer
from qrole.checkpoint.native.weights import NativeWeight
from qrole.checkpoint.schemes import ENCODINGS, WeightFormat

__all__ = ["encode_rate", "quantizer_rate", "write_rate"]

_COLUMNS = 4096
_WRITTEN = 8 << 20
#: Four bf16 values around 1, over and over.
_PATTERN = bytes((0x40, 0x3F, 0x00, 0xBF, 0x80, 0x3E, 0xC0, 0x3F))


def encode_rate(encoding: str) -> float:
    """Elements per second of one thread; formats with a global scale read everything twice."""
    size = ROW_STEP * _COLUMNS
    source, data, scale = Buffer(2 * size), Buffer(size), Buffer(size)
    source.view[:] = _PATTERN * (2 * size // len(_PATTERN))
    rows = Rows(source.address, "bf16", ROW_STEP, _COLUMNS)
    encode, fmt = ENCODERS[encoding], WeightFormat(encoding)
    passes = 2 if ENCODINGS[encoding].shared else 1
    return size / passes / _best(lambda: encode(rows, fmt, 1.0, data, scale))


def quantizer_rate(weight: NativeWeight) -> float:
    """Elements per second of a quantizer in torch, both representations made."""
    import torch

    from qrole.checkpoint.native.quantizing import quantized

    draw = torch.Generator().manual_seed(0)
    x_MK = torch.randn(ROW_STEP, _COLUMNS, generator=draw).to(weight.torch_dtype)
    return x_MK.numel() / _best(lambda: quantized(weight, x_MK))


def write_rate() -> float:
    """Bytes per second of a write to a file in memory: new pages each time, as for any file."""
    content = bytes(_WRITTEN)

    def write() -> None:
        with _file_in_memory() as file:
            file.write(content)

    return _WRITTEN / _best(write)


def _file_in_memory() -> IO[bytes]:
    make = getattr(os, "memfd_create", None)  # of Linux
    return open(make("qrole"), "wb", 0) if make else tempfile.TemporaryFile(buffering=0)


def _best(call: Callable[[], object]) -> float:
    """Seconds of the fastest of three calls after a first one."""
    call()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return max(min(times), 1e-9)
