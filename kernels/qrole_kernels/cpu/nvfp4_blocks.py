"""What the NVFP4 kernels share: the scales, and the writing of blocks."""

from __future__ import annotations

from collections.abc import Callable

from qrole_kernels.cpu.blocks import Amax
from qrole_kernels.cpu.builder import Kernel
from qrole_kernels.cpu.groups import Place, Walk
from qrole_kernels.cpu.rounding import FLOAT32_MAX, fp4_codes, saturate_code
from qrole_kernels.cpu.simd import F32, I8, I64, PTR, Value, lanes, minimum, select
from qrole_kernels.cpu.sink import decode
from qrole_kernels.cpu.source import AHEAD, VECTOR, Pair, Source
from qrole_kernels.formats import E4M3

BLOCK = 16
BLOCKS = 32
"""Blocks worked on together: two independent registers of scales keep the processor busy."""
GROUP = BLOCKS * BLOCK
STEPS = GROUP // VECTOR
AMAX = {"amax": PTR, "amax_step": I64, "full_scale": F32}
"""The amax of row r lies `r * amax_step` bytes from `amax` (0: one for all rows); `full_scale` is
what an amax maps to, 6 times the largest block scale."""

BLOCK_OF_LANE = [0] * 8 + [1] * 8
"""Which of the two blocks in a vector a lane of even or odd elements belongs to."""

Encode = Callable[[Pair, Value, Value, Value], Value]
"""Packed codes from a vector, its factors, and where it is: the line and the step in the group."""

SATURATES = 464.0
"""From here on rounding to E4M3 would give more than its largest value."""


def to_nearest(in_range: bool) -> Encode:
    """Rounding to nearest even; see `fp4_codes`."""
    return lambda pair, factor, line, i: fp4_codes(pair, factor, in_range)


def row_amax(k: Kernel, row: Value) -> Value:
    """The amax that holds for a row (scalar)."""
    return k.pointer("amax").at(row * k["amax_step"]).load(F32)


def encode_scale(amax: Value, full_scale: Value) -> Value:
    """S_enc: what brings block maxima into the range of the block scales."""
    scale = minimum(full_scale / amax, FLOAT32_MAX)
    return select(amax.equals(0.0) | scale.equals(0.0), 1.0, scale)


def e4m3_codes(value: Value) -> Value:
    """E4M3 codes in 32-bit lanes; negative only under a negative amax."""
    sign = (value.bits() >> 24) & 0x80
    return (saturate_code(value.magnitude(), E4M3) & 0x7F) | sign


def block_factors(scale: Value, s_enc: Value) -> Value:
    """What the elements of blocks with these E4M3 scales are multiplied by."""
    return minimum(1.0 / (decode(scale, E4M3) * (1.0 / s_enc)), FLOAT32_MAX)


def stays_in_range(amax: Amax, scale: Value) -> Value:
    """Whether no element of the blocks can be NaN or round to more than 6 (scalar).

    That is so where every scale, in fp32 and not yet rounded, becomes a normal E4M3 number without
    saturating: it then loses at most 1/17, and 6 * 17/16 still rounds to 6.
    """
    return amax.finite & (scale >= E4M3.min_normal).all() & (scale < SATURATES).all()


def write_blocks(
    walk: Walk,
    source: Source,
    places: tuple[Place, Place, Place],
    lines: Value,
    scale: Value,
    factor: Value,
    encode: Encode,
) -> None:
    """Writes a group, `lines` rows high, with the scale codes and factors of its blocks."""
    k, (src, codes, scales) = walk.k, places
    ahead = AHEAD if walk.height == 1 else GROUP * source.nbytes
    factors = k.scratch(4 * BLOCKS)
    factors.store(factor)
    with k.range(lines) as line:
        scales.line(line).store(scale.narrow(I8))
        with k.range(STEPS) as i:
            address = src.line(line).at(i * source.vector_nbytes)
            source.prefetch(address.at(ahead))
            two = factors.at(i * 8).load(lanes(F32, 2)).take(BLOCK_OF_LANE)
            place = codes.line(line).at(i * (VECTOR // 2))
            place.store(encode(source.pair(address), two, line, i))
