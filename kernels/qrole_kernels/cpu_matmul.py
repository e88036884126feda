"""Matrix products on the CPU's bf16 units, where these are exact.

torch has no fp32 = bf16 x bf16 product on CPU; what it has is a process-wide setting that lets fp32
products round their inputs to bf16 first. For inputs that are bf16 numbers nothing is rounded, the
accumulation is fp32, and the product takes about half the time of an fp32 one.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from qrole_kernels.reference.matmul import BLOCK, block_factors, fma

ROWS_PER_TILE = 512
"""Rows whose partial sums are formed together, so that they stay in the cache."""

_LOCK = threading.Lock()


@contextmanager
def _fp32_precision(precision: str) -> Iterator[None]:
    """Let fp32 products on this machine run at `precision` ("ieee" or "bf16") meanwhile.

    The setting belongs to the process: one thread at a time changes it, and what another part of
    the program has set in between is left alone.
    """
    setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    with _LOCK:
        before = setting.fp32_precision
        setting.fp32_precision = precision
        try:
            yield
        finally:
            if setting.fp32_precision == precision:
                setting.fp32_precision = before


def matmul_f32(a: Tensor, b: Tensor, bf16_exact: bool) -> Tensor:
    """See `qrole_kernels.reference.matmul_f32`."""
    with _fp32_precision("bf16" if bf16_exact else "ieee"):
        return a @ b.t()


def matmul_fp8_block(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_block_rows: int,
    b_block_rows: int,
) -> Tensor:
    """See `qrole_kernels.reference.matmul_fp8_block`."""
    factors = block_factors(a, b, a_scale, b_scale, a_block_rows, b_block_rows)
    total = a.new_zeros(a.shape[0], b.shape[0])
    buffer = a.new_empty(min(a.shape[0], ROWS_PER_TILE), b.shape[0])
    with _fp32_precision("bf16"):
        for start in range(0, a.shape[0], ROWS_PER_TILE):
            rows = slice(start, start + ROWS_PER_TILE)
            first, second = (f[:, rows] if f.shape[2] == 1 else f for f in factors)
            _accumulate(a[rows], b, first, second, total[rows], buffer)
    return total


def _accumulate(
    a: Tensor, b: Tensor, first: Tensor, second: Tensor, total: Tensor, buffer: Tensor
) -> None:
    """Add the scaled partial products to `total`, through one reused buffer."""
    partial = buffer[: a.shape[0]]
    is_fused = _addcmul_is_fused()
    for i in range(first.shape[0]):
        k = slice(i * BLOCK, (i + 1) * BLOCK)
        torch.mm(a[:, k], b[:, k].t(), out=partial).mul_(first[i])
        if is_fused:
            total.addcmul_(partial, second[i])
        else:
            total.copy_(fma(partial, second[i], total))


@cache
def _addcmul_is_fused() -> bool:
    """Whether torch's addcmul rounds once on this machine, in its vector and its scalar loop."""
    x, y, z = torch.randn(3, 37, 211, generator=torch.Generator().manual_seed(0))
    return all(
        torch.equal(z.addcmul(x, factor), fma(x, factor, z)) for factor in (y, y[:, :1], y[:1])
    )
