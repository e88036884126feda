"""Memory that an operation needs beyond what is held already."""

import gc
from collections.abc import Callable
from pathlib import Path


def extra_bytes(operation: Callable[[], object]) -> int:
    """How far the peak of the resident memory rises while the operation runs (Linux)."""
    operation()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    operation()
    return max(0, _status("VmHWM") - before)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise KeyError(key)
