"""The 16-point Hadamard transform of NVFP4's wgrad operands."""

from __future__ import annotations

from qrole_kernels.cpu.arguments import contiguous
from qrole_kernels.cpu.builder import Kernel
from qrole_kernels.cpu.groups import COMPACT, Walk, compact
from qrole_kernels.cpu.jit import kernel
from qrole_kernels.cpu.pieces import Piece, for_each_piece
from qrole_kernels.cpu.simd import I32, PTR, Value, lanes, select
from qrole_kernels.cpu.sink import round_bf16
from qrole_kernels.cpu.source import F32_INF, VECTOR
from qrole_kernels.errors import ArgumentError

GROUP = 16
_WORDS = lanes(I32, 16)


@kernel(src=PTR, out=PTR, sign_mask=I32, **COMPACT)
def hadamard16(k: Kernel) -> None:
    """Transforms groups of 16 bf16 along the rows of a contiguous matrix.

    The sums are made by butterflies of stride 1, 2, 4, 8, in this order.
    """
    mask = k["sign_mask"].splat(16)
    lane = k.vector(_WORDS, [i % 8 for i in range(16)])
    signs = [((mask >> (lane * 2 + parity)) << 31) for parity in (0, 1)]

    walk = Walk(k, VECTOR, [compact(k, "src", 1, 2)], [compact(k, "out", 1, 2)])

    with walk.rows() as row, walk.groups(row) as (src, out):
        words = src.start.load(_WORDS)
        halves = words << 16, words & 0xFFFF0000
        even, odd = (
            (half ^ sign).as_f32() * 0.25 for half, sign in zip(halves, signs, strict=True)
        )
        even, odd = even + odd, even - odd
        for stride in (1, 2, 4):
            even, odd = _butterfly(k, even, stride), _butterfly(k, odd, stride)
        low, high = _plain_bf16(even) >> 16, _plain_bf16(odd) & 0xFFFF0000
        out.start.store(low | high)


def _butterfly(k: Kernel, value: Value, stride: int) -> Value:
    """The sum in the first and the difference in the second of each pair of lanes."""
    upper = k.vector(_WORDS, [0x80000000 if i & stride else 0 for i in range(16)])
    signed = (value.bits() ^ upper).as_f32()
    return value.take([i ^ stride for i in range(16)]) + signed


def _plain_bf16(value: Value) -> Value:
    is_nan = (value.bits() & 0x7FFFFFFF) > F32_INF
    return select(is_nan, 0x7FC00000, round_bf16(value))


def host_hadamard16(
    src: int, rows: int, cols: int, sign_mask: int, out: int, *, threads: int = 0
) -> None:
    """Transform groups of 16 along the rows of a contiguous bf16 matrix; `out` has its shape."""
    if cols % GROUP:
        raise ArgumentError(
            f"{cols} columns", "a multiple of 16", "Choose a token count that is a multiple of 16."
        )
    kernel = hadamard16()

    def work(p: Piece) -> None:
        kernel(p.at(src, 1, 2), p.at(out, 1, 2), sign_mask, p.rows, p.cols)

    for_each_piece(work, contiguous(rows, cols), 1, GROUP, threads)
