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
    GROUP,
    STEPS,
    block_factors,
    e4m3_codes,
    encode_scale,
    row_amax,
    write_blocks,
)
from qrole_kernels.cpu.rounding import fp4_codes, round_value
from qrole_kernels.cpu.simd import F32, PTR, Pointer, Value, lanes, minimum, select
from qrole_kernels.cpu.sink import decode
from qrole_kernels.cpu.source import SOURCES, Source
from qrole_kernels.cpu.transpose import transposed
from qrole_kernels.formats import E2M1, E4M3

ERRORS = ("mae", "mse")
_SIXTEEN = lanes(F32, 16)


@dataclass(frozen=True)
class _Candidate:
    """One way to scale 16 blocks: scale codes (16 x i32) and what elements are multiplied by."""

    scale: Value
    factor: Value


@kernel(src=PTR, **AMAX, random=PTR, out=PTR, scale=PTR, **MATRIX)
def quantize_nvfp4_four_over_six(k: Kernel, dtype: str, block_rows: int, error: str) -> None:
    """Blocks of (block_rows, 16), by the error "mae" or "mse"; `random` is unused."""
    source = SOURCES[dtype]
    outputs = [compact(k, "out", 2, 1), compact(k, "scale", BLOCK, 1)]
    walk = Walk(k, GROUP, [matrix(k, source.nbytes)], outputs, block_rows)
    errors = [k.scratch(block_rows * 64) for _ in range(2)]

    with walk.rows() as row:
        lines, given = walk.lines(row), row_amax(k, row)
        s_enc = encode_scale(given, k["full_scale"]).splat(16)
        with walk.groups(row) as (src, codes, scales):
            amax = block_amax(k, source, src, STEPS, None if block_rows == 1 else lines)
            to_six, to_four = candidates(amax, s_enc)
            for memory in errors:
                with k.range(block_rows) as line:
                    memory.at(line * 64).store(k.constant(_SIXTEEN, 0.0))
            with k.range(lines) as line:
                elements = elements_of_blocks(source, src.line(line))
                for memory, candidate in zip(errors, (to_six, to_four), strict=True):
                    total = row_error(elements, candidate, given, k["full_scale"], error)
                    memory.at(line * 64).store(total)
            of_six, of_four = (sum_of_halves(memory, block_rows) for memory in errors)
            picked = of_four < of_six
            scale = select(picked, to_four.scale, to_six.scale)
            factor = select(picked, to_four.factor, to_six.factor)
            places = src, codes, scales
            write_blocks(
                walk,
                source,
                places,
                lines,
                scale,
                factor,
                lambda pair, two, *_: fp4_codes(pair, two),
            )


def candidates(amax: Value, s_enc: Value) -> tuple[_Candidate, _Candidate]:
    """The scales that map block maxima to 6 and to 4."""
    base = (amax / E2M1.max) * s_enc
    codes = [e4m3_codes(minimum(b, E4M3.max)) for b in (base, base * 1.5)]
    six, four = (_Candidate(code, block_factors(code, s_enc)) for code in codes)
    return six, four


def elements_of_blocks(source: Source, line: Pointer) -> list[Value]:
    """Magnitudes of 16 blocks in a row: item i holds element i of each (16 x fp32)."""
    blocks = []
    for address in source.vectors(line, STEPS):
        pair = source.pair(address)
        for first in (0, 8):
            lanes_of_block = [first + i for i in range(8)] + [16 + first + i for i in range(8)]
            blocks.append(pair.even.take(lanes_of_block, pair.odd))
    evens_then_odds = transposed(blocks)
    return [evens_then_odds[i // 2 + 8 * (i % 2)] for i in range(BLOCK)]


def row_error(
    elements: list[Value], candidate: _Candidate, amax: Value, full_scale: Value, error: str
) -> Value:
    """The error of one row of each block, summed element after element (16 x fp32).

    Taken on magnitudes: a code has the sign of its element, a scale that of the amax.
    """
    scale = decode(candidate.scale, E4M3).magnitude()
    whole, full = amax.magnitude().splat(16), full_scale.splat(16)
    total = scale.like(0.0)
    for x in elements:
        value = round_value(minimum(x * candidate.factor, E2M1.max), E2M1)
        deviation = value * scale * whole / full - x
        total = total + (deviation.magnitude() if error == "mae" else deviation * deviation)
    return total


def sum_of_halves(memory: Pointer, count: int) -> Value:
    """The sum of `count` vectors: the upper half is added to the lower until one is left."""
    level = [memory.at(i * 64).load(_SIXTEEN) for i in range(count)]
    while len(level) > 1:
        half = len(level) // 2
        level = [a + b for a, b in zip(level[:half], level[half:], strict=True)]
    return level[0]
