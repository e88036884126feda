"""Threads for kernels that run without the GIL."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from qrole_kernels.errors import ArgumentError

T = TypeVar("T")

_pools: dict[int, ThreadPoolExecutor] = {}
os.register_at_fork(after_in_child=_pools.clear)


def default_threads() -> int:
    """`QROLE_NUM_THREADS`, else torch's number where it is loaded, else all processors.

    Raises:
        ArgumentError: The variable is no positive integer.
    """
    if chosen := os.environ.get("QROLE_NUM_THREADS"):
        if not chosen.isdecimal() or int(chosen) < 1:
            raise ArgumentError(
                f"QROLE_NUM_THREADS={chosen!r}", "a positive integer", "Set or unset the variable."
            )
        return int(chosen)
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def run(work: Callable[[T], None], pieces: Sequence[T], threads: int) -> None:
    """Calls `work` on every piece, on `threads` threads (0: the default number), this one included.

    All threads take from one list, so a slow one delays nothing but its own last piece.
    """
    count = min(threads or default_threads(), len(pieces))
    remaining = iter(pieces)

    def take_pieces() -> None:
        for piece in remaining:
            work(piece)

    helpers = [_pool(count).submit(take_pieces) for _ in range(count - 1)]
    try:
        take_pieces()
    finally:
        wait(helpers)
    for helper in helpers:
        helper.result()


def _pool(count: int) -> ThreadPoolExecutor:
    pool = _pools.get(count)
    if pool is None:
        pool = _pools.setdefault(count, ThreadPoolExecutor(count - 1, "qrole"))
    return pool
