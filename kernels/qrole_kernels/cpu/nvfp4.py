"""NVFP4: E2M1 elements, one E4M3 scale per 16, an fp32 amax per tensor or row (spec: section 5)."""

from __future__ import annotations

from qrole_kernels.cpu.blocks import block_amax
from qrole_kernels.cpu.groups import COMPACT, MATRIX, Walk, compact, matrix
from qrole_kernels.cpu.jit import kernel
from qrole_kernels.cpu.rounding import FLOAT32_MAX, fp4_codes, round_value, saturate_code
from qrole_kernels.cpu.simd import F32, I8, I32, I64, PTR, Kernel, Value, lanes, minimum, select
from qrole_kernels.cpu.sink import SINKS, decode, decode_fp4_pair
from qrole_kernels.cpu.source import AHEAD, SOURCES, VECTOR
from qrole_kernels.formats import E4M3

BLOCK = 16
GROUP = 16 * BLOCK
STEPS = GROUP // VECTOR
AMAX = {"amax": PTR, "amax_step": I64, "full_scale": F32}
"""The amax of row r lies `r * amax_step` bytes from `amax` (0: one for all rows); `full_scale` is
what an amax maps to, 6 times the largest block scale."""

_FACTOR_OF_LANE = [0] * 8 + [1] * 8


@kernel(src=PTR, **AMAX, out=PTR, scale=PTR, **MATRIX)
def quantize_nvfp4(k: Kernel, dtype: str, block_rows: int) -> None:
    """Blocks of (block_rows, 16), block_rows 1 or 16; every row gets the scales of its blocks."""
    source = SOURCES[dtype]
    outputs = [compact(k, "out", 2, 1), compact(k, "scale", BLOCK, 1)]
    walk = Walk(k, GROUP, [matrix(k, source.nbytes)], outputs, block_rows)
    ahead = AHEAD if block_rows == 1 else GROUP * source.nbytes
    factors = k.scratch(64)

    with walk.rows() as row:
        lines = walk.lines(row)
        s_enc = encode_scale(k, row)
        s_dec = 1.0 / s_enc
        with walk.groups(row) as (src, codes, scales):
            amax = block_amax(k, source, src, STEPS, None if block_rows == 1 else lines)
            scale = minimum(amax * (s_enc * (1 / 6)).splat(16), FLOAT32_MAX)
            scale_codes = saturate_code(scale, E4M3).narrow(I8)
            value = round_value(minimum(scale, E4M3.max), E4M3)
            factors.store(minimum(1.0 / (value * s_dec.splat(16)), FLOAT32_MAX))
            with k.range(lines) as line:
                scales.line(line).store(scale_codes)
                with k.range(STEPS) as i:
                    address = src.line(line).at(i * source.vector_nbytes)
                    source.prefetch(address.at(ahead))
                    two = factors.at(i * 8).load(lanes(F32, 2)).take(_FACTOR_OF_LANE)
                    place = codes.line(line).at(i * (VECTOR // 2))
                    place.store(fp4_codes(source.pair(address), two))


def encode_scale(k: Kernel, row: Value) -> Value:
    """S_enc of a row: what brings its block maxima into the range of the block scales."""
    amax = k.pointer("amax").at(row * k["amax_step"]).load(F32)
    scale = minimum(k["full_scale"] / amax, FLOAT32_MAX)
    return select(amax.equals(0.0) | scale.equals(0.0), 1.0, scale)


@kernel(data=PTR, scale=PTR, **AMAX, out=PTR, **COMPACT)
def dequantize_nvfp4(k: Kernel, dtype: str) -> None:
    """One scale per 16 elements of each row."""
    sink = SINKS[dtype]
    inputs = [compact(k, "data", 2, 1), compact(k, "scale", BLOCK, 1)]
    walk = Walk(k, GROUP, inputs, [compact(k, "out", 1, sink.nbytes)])
    to_amax = (1.0 / k["full_scale"]).splat(16)
    factors = k.scratch(64)

    with walk.rows() as row:
        amax = k.pointer("amax").at(row * k["amax_step"]).load(F32).splat(16)
        with walk.groups(row) as (data, scales, out):
            scale = decode(scales.start.load(lanes(I8, 16)).widen(I32), E4M3)
            factors.store(scale * amax * to_amax)
            with k.range(STEPS) as i:
                two = factors.at(i * 8).load(lanes(F32, 2)).take(_FACTOR_OF_LANE)
                even, odd = decode_fp4_pair(data.start.at(i * (VECTOR // 2)))
                sink.store(out.start.at(i * sink.vector_nbytes), even * two, odd * two)
