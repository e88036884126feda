"""Counting elements: those beyond the limit of their block, and codes that are not zero."""

from __future__ import annotations

import ctypes

from qrole_kernels.cpu.builder import Kernel
from qrole_kernels.cpu.jit import kernel
from qrole_kernels.cpu.simd import F32, I32, I64, PTR, lanes, select
from qrole_kernels.cpu.source import AHEAD
from qrole_kernels.cpu.threads import run

LANES = 16
STEP = 64
"""Codes per step; arrays have to hold a multiple of it."""
_PIECE = 1 << 16
_WORDS = lanes(I32, LANES)


@kernel(src=PTR, limits=PTR, out=PTR, blocks=I64)
def beyond(k: Kernel, block: int) -> None:
    """Blocks of `block` fp32 elements, one fp32 limit each; counts in 16 int32 lanes."""
    counts = k.variable(k.constant(_WORDS, 0))
    with k.range(k["blocks"]) as i:
        limit = k.pointer("limits").at(i * 4).load(F32).splat(LANES)
        start = k.pointer("src").at(i * (4 * block))
        for part in range(block // LANES):
            address = start.at(part * LANES * 4)
            address.at(AHEAD).prefetch()
            magnitude = address.load(lanes(F32, LANES)).magnitude()
            counts.set(counts.get() + select(magnitude > limit, counts.get().like(1), 0))
    k.pointer("out").store(counts.get())


@kernel(src=PTR, mask=I32, out=PTR, count=I64)
def masked(k: Kernel) -> None:
    """Words of four codes, each looked at under the same mask; counts in 16 int32 lanes."""
    counts = k.variable(k.constant(_WORDS, 0))
    mask = k["mask"].splat(LANES)
    with k.range(k["count"], STEP) as i:
        words = k.pointer("src").at(i).load(_WORDS) & mask
        for byte in range(4):
            is_zero = ((words >> (8 * byte)) & 0xFF).equals(0)
            counts.set(counts.get() + select(is_zero, 0, counts.get().like(1)))
    k.pointer("out").store(counts.get())


def host_beyond(src: int, limits: int, blocks: int, block: int, *, threads: int = 0) -> int:
    """How many elements are larger in magnitude than their block's limit; NaN never is.

    Args:
        src: Address of fp32 elements, block after block.
        limits: Address of one fp32 limit per block.
        blocks: Number of blocks.
        block: Elements per block, a multiple of 16.
        threads: Number of threads; 0 is the default number.
    """
    compiled = beyond(block)
    found = []

    def work(first: int) -> None:
        counts = (ctypes.c_int32 * LANES)()
        held = min(blocks - first, _PIECE)
        address = src + first * block * 4
        compiled(address, limits + first * 4, ctypes.addressof(counts), held)
        found.append(sum(counts))

    run(work, range(0, blocks, _PIECE), threads)
    return sum(found)


def host_masked(src: int, count: int, mask: int, *, threads: int = 0) -> int:
    """How many bytes have any of the mask's bits set.

    Args:
        src: Address of bytes.
        count: Their number, a multiple of STEP.
        mask: Bits of a byte.
        threads: Number of threads; 0 is the default number.
    """
    compiled = masked()
    found = []
    step = _PIECE * STEP

    def work(first: int) -> None:
        counts = (ctypes.c_int32 * LANES)()
        held = min(count - first, step)
        compiled(src + first, mask * 0x01010101, ctypes.addressof(counts), held)
        found.append(sum(counts))

    run(work, range(0, count, step), threads)
    return sum(found)
