"""NVFP4 with a choice per block: its maximum maps to 6, or to 4 where that errs less."""

from __future__ import annotations

from dataclasses import dataclass

from qrole_kernels.cpu.blocks import block_amax
from qrole_kernels.cpu.builder import Kernel
from qrole_kernels.cpu.groups import MATRIX, Walk, compact, matrix
from qrole_kernels.cpu.jit import kernel
from qrole_kernels.cpu.nvfp4_blocks import (
    AMAX,
    BLOCK,
    BLOCKS,
    GROUP,
    STEPS,
    block_factors,
    e4m3_codes,
    encode_scale,
    row_amax,
    to_nearest,
    write_blocks,
)
from qrole_kernels.cpu.rounding import round_value
from qrole_kernels.cpu.simd import F32, PTR, Pointer, Value, lanes, minimum, select
from qrole_kernels.cpu.sink import decode
from qrole_kernels.cpu.source import SOURCES, Source
from qrole_kernels.cpu.transpose import transposed
from qrole_kernels.formats import E2M1, E4M3

ERRORS = ("mae", "mse")
PITCH = 4 * BLOCKS
_PER_BLOCK = lanes(F32, BLOCKS)


@dataclass(frozen=True)
class _Candidate:
    """One way to scale blocks: the scale codes, and what their elements are multiplied by."""

    scale: Value
    factor: Value


@kernel(src=PTR, **AMAX, random=PTR, out=PTR, scale=PTR, **MATRIX)
def quantize_nvfp4_four_over_six(k: Kernel, dtype: str, block_rows: int, error: str) -> None:
    """Blocks of (block_rows, 16), by the error "mae" or "mse"; `random` is unused."""
    source = SOURCES[dtype]
    outputs = [compact(k, "out", 2, 1), compact(k, "scale", BLOCK, 1)]
    walk = Walk(k, GROUP, [matrix(k, source.nbytes)], outputs, block_rows)
    errors = [k.scratch(block_rows * PITCH) for _ in range(2)]

    with walk.rows() as row:
        lines, given = walk.lines(row), row_amax(k, row)
        s_enc = encode_scale(given, k["full_scale"]).splat(BLOCKS)
        with walk.groups(row) as (src, codes, scales):
            amax = block_amax(k, source, src, STEPS, None if block_rows == 1 else lines, BLOCKS)
            to_six, to_four = candidates(amax.value, s_enc)
            for memory in errors:
                with k.range(block_rows) as line:
                    memory.at(line * PITCH).store(k.constant(_PER_BLOCK, 0.0))
            with k.range(lines) as line:
                elements = elements_of_blocks(source, src.line(line))
                for memory, candidate in zip(errors, (to_six, to_four), strict=True):
                    total = row_error(elements, candidate, given, k["full_scale"], error)
                    memory.at(line * PITCH).store(total)
            of_six, of_four = (sum_of_halves(memory, block_rows) for memory in errors)
            picked = of_four < of_six
            scale = select(picked, to_four.scale, to_six.scale)
            factor = select(picked, to_four.factor, to_six.factor)
            encode = to_nearest(in_range=False)
            write_blocks(walk, source, (src, codes, scales), lines, scale, factor, encode)


def candidates(amax: Value, s_enc: Value) -> tuple[_Candidate, _Candidate]:
    """The scales that map block maxima to 6 and to 4."""
    base = (amax / E2M1.max) * s_enc
    codes = [e4m3_codes(minimum(b, E4M3.max)) for b in (base, base * 1.5)]
    six, four = (_Candidate(code, block_factors(code, s_enc)) for code in codes)
    return six, four


def elements_of_blocks(source: Source, line: Pointer) -> list[Value]:
    """Magnitudes of a group's blocks in a row: item i holds element i of each block."""
    blocks = []
    for address in source.vectors(line, STEPS):
        pair = source.pair(address)
        for first in (0, 8):
            evens_then_odds = [first + i for i in range(8)] + [16 + first + i for i in range(8)]
            blocks.append(pair.even.take(evens_then_odds, pair.odd))
    tiles = [transposed(blocks[i : i + BLOCK]) for i in range(0, BLOCKS, BLOCK)]
    columns = [first.take(range(BLOCKS), second) for first, second in zip(*tiles, strict=True)]
    return [columns[i // 2 + 8 * (i % 2)] for i in range(BLOCK)]


def row_error(
    elements: list[Value], candidate: _Candidate, amax: Value, full_scale: Value, error: str
) -> Value:
    """The error of one row of each block, summed element after element.

    Taken on magnitudes: a code has the sign of its element, a scale that of the amax.
    """
    scale = decode(candidate.scale, E4M3).magnitude()
    whole, full = amax.magnitude().splat(BLOCKS), full_scale.splat(BLOCKS)
    total = scale.like(0.0)
    for x in elements:
        value = round_value(minimum(x * candidate.factor, E2M1.max), E2M1)
        deviation = value * scale * whole / full - x
        total = total + (deviation.magnitude() if error == "mae" else deviation * deviation)
    return total


def sum_of_halves(memory: Pointer, count: int) -> Value:
    """The sum of `count` vectors: the upper half is added to the lower until one is left."""
    level = [memory.at(i * PITCH).load(_PER_BLOCK) for i in range(count)]
    while len(level) > 1:
        half = len(level) // 2
        level = [a + b for a, b in zip(level[:half], level[half:], strict=True)]
    return level[0]
