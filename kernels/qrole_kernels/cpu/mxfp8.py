"""MXFP8: one E8M0 scale per 32 elements or per 32x32 block (spec: section 4)."""

from __future__ import annotations

from qrole_kernels.cpu.blocks import row_block_amax, tile_block_amax
from qrole_kernels.cpu.groups import COMPACT, MATRIX, Place, Walk, compact, matrix
from qrole_kernels.cpu.jit import kernel
from qrole_kernels.cpu.rounding import e8m0_reciprocal, e8m0_up, fp8_codes
from qrole_kernels.cpu.simd import F32, I8, I16, I32, PTR, Kernel, Value, lanes, maximum, select
from qrole_kernels.cpu.sink import SINKS, decode_e8m0, decode_fp8_pair
from qrole_kernels.cpu.source import F32_INF, SOURCES, VECTOR
from qrole_kernels.formats import ElementFormat, fp8_format

BLOCK = 32
GROUP = 16 * BLOCK
STEPS = GROUP // VECTOR


@kernel(src=PTR, out=PTR, scale=PTR, **MATRIX)
def quantize_mxfp8_rows(k: Kernel, dtype: str, element: str, block_rows: int) -> None:
    """Blocks of (block_rows, 32), block_rows 1 or 32."""
    source, form = SOURCES[dtype], fp8_format(element)
    outputs = [compact(k, "out", 1, 1), compact(k, "scale", BLOCK, 1, block_rows)]
    walk = Walk(k, GROUP, [matrix(k, source.nbytes)], outputs, block_rows)
    factors = k.scratch(64)

    with k.range(k["rows"], block_rows) as row:
        lines = walk.lines(row)

        def body(inputs: list[Place], outputs: list[Place]) -> None:
            (src,), (codes, scales) = inputs, outputs
            if block_rows == 1:
                amax = row_block_amax(k, source, src, STEPS)
            else:
                amax = tile_block_amax(k, source, src, lines, STEPS)
            scale = scale_code(amax, form)
            scales.start.store(scale.narrow(I8))
            factors.store(e8m0_reciprocal(scale))
            with k.range(lines) as line, k.range(STEPS) as i:
                factor = factors.at(i * 4).load(F32).splat(16)
                pair = source.pair(src.line(line).at(i * (VECTOR * source.nbytes)))
                codes.line(line).at(i * VECTOR).store(fp8_codes(pair, factor, form))

        walk.row(row, body)


@kernel(src=PTR, out=PTR, scale=PTR, **MATRIX)
def quantize_mxfp8_columns(k: Kernel, dtype: str, element: str) -> None:
    """Blocks of (32, 1)."""
    source, form = SOURCES[dtype], fp8_format(element)
    outputs = [compact(k, "out", 1, 1), compact(k, "scale", 1, 1, BLOCK)]
    walk = Walk(k, VECTOR, [matrix(k, source.nbytes)], outputs, BLOCK)

    with k.range(k["rows"], BLOCK) as row:
        lines = walk.lines(row)

        def body(inputs: list[Place], outputs: list[Place]) -> None:
            (src,), (codes, scales) = inputs, outputs
            zero = k.constant(lanes(I32, 16), 0)
            largest = k.variable(zero), k.variable(zero)
            with k.range(lines) as i:
                pair = source.pair(src.line(i))
                for variable, magnitude in zip(largest, (pair.even, pair.odd), strict=True):
                    bits = magnitude.bits()
                    bits = select(bits > F32_INF, 0, bits)
                    variable.set(maximum(variable.get(), bits))
            even, odd = (scale_code(variable.get().as_f32(), form) for variable in largest)
            scales.start.store((even | (odd << 8)).narrow(I16))
            factors = e8m0_reciprocal(even), e8m0_reciprocal(odd)
            with k.range(lines) as i:
                codes.line(i).store(fp8_codes(source.pair(src.line(i)), factors, form))

        walk.row(row, body)


def scale_code(amax: Value, form: ElementFormat) -> Value:
    """The E8M0 code of amax / form.max, rounded up; the kernels multiply by the fp32 reciprocal."""
    return e8m0_up(amax * (1.0 / form.max))


@kernel(data=PTR, scale=PTR, out=PTR, **COMPACT)
def dequantize_mxfp8_rows(k: Kernel, element: str, block_rows: int, dtype: str) -> None:
    """Blocks of (block_rows, 32), block_rows 1 or 32."""
    form, sink = fp8_format(element), SINKS[dtype]
    inputs = [compact(k, "data", 1, 1), compact(k, "scale", BLOCK, 1, block_rows)]
    walk = Walk(k, VECTOR, inputs, [compact(k, "out", 1, sink.nbytes)])

    def body(inputs: list[Place], outputs: list[Place]) -> None:
        factor = decode_e8m0(inputs[1].start.load(I8).widen(I32)).splat(16)
        even, odd = decode_fp8_pair(inputs[0].start, form)
        sink.store(outputs[0].start, factor * even, factor * odd)

    with k.range(k["rows"]) as row:
        walk.row(row, body)


@kernel(data=PTR, scale=PTR, out=PTR, **COMPACT)
def dequantize_mxfp8_columns(k: Kernel, element: str, dtype: str) -> None:
    """Blocks of (32, 1)."""
    form, sink = fp8_format(element), SINKS[dtype]
    inputs = [compact(k, "data", 1, 1), compact(k, "scale", 1, 1, BLOCK)]
    walk = Walk(k, VECTOR, inputs, [compact(k, "out", 1, sink.nbytes)])

    def body(inputs: list[Place], outputs: list[Place]) -> None:
        scales = inputs[1].start.load(lanes(I16, 16)).widen(I32)
        even, odd = decode_fp8_pair(inputs[0].start, form)
        even_scale, odd_scale = decode_e8m0(scales & 0xFF), decode_e8m0(scales >> 8)
        sink.store(outputs[0].start, even_scale * even, odd_scale * odd)

    with k.range(k["rows"]) as row:
        walk.row(row, body)
