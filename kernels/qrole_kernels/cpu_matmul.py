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

from qrole_kernels.reference.matmul import accumulate_blocks, fma

ROWS_PER_TILE = 256
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
    multiply_add = _addcmul if _addcmul_is_fused() else fma
    tiles = range(0, max(a.shape[0], 1), ROWS_PER_TILE)
    products = []
    for start in tiles:
        rows = slice(start, start + ROWS_PER_TILE)
        blocks = slice(start // a_block_rows, (start + ROWS_PER_TILE) // a_block_rows)
        products.append(
            accumulate_blocks(
                a[rows],
                b,
                a_scale[blocks],
                b_scale,
                a_block_rows,
                b_block_rows,
                matmul_f32,
                multiply_add,
            )
        )
    return torch.cat(products)


def _addcmul(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return z.addcmul_(x, y.expand_as(x))


@cache
def _addcmul_is_fused() -> bool:
    """Whether torch's addcmul rounds once on this machine, in its vector and its scalar loop."""
    generator = torch.Generator().manual_seed(0)
    x, y, z = torch.randn(3, 37, 211, generator=generator)
    rows = y[:, :1]
    return all(
        torch.equal(_addcmul(x, factor, z.clone()), fma(x, factor, z))
        for factor in (y, rows, y[:1])
    )
