"""FP8 with one fp32 scale per 1x128 or 128x128 block (spec: section 3)."""

from __future__ import annotations

from qrole_kernels.cpu.blocks import KeysOf, column_keys, one_block, vectors, without_nan
from qrole_kernels.cpu.fp8 import fp8_scale
from qrole_kernels.cpu.groups import COMPACT, MATRIX, Place, Walk, compact, matrix
from qrole_kernels.cpu.jit import kernel
from qrole_kernels.cpu.rounding import FLOAT32_MAX, fp8_codes
from qrole_kernels.cpu.simd import F32, PTR, Kernel, Value
from qrole_kernels.cpu.sink import SINKS, decode_fp8_pair
from qrole_kernels.cpu.source import SOURCES, VECTOR
from qrole_kernels.formats import fp8_format

BLOCK = 128
STEPS = BLOCK // VECTOR
INPUT_MAX = {"f32": FLOAT32_MAX, "bf16": float.fromhex("0x1.FEp127"), "f16": 65504.0}
"""Scale where amax is so small that the quotient overflows."""


@kernel(src=PTR, out=PTR, scale_inv=PTR, epsilon=F32, **MATRIX)
def quantize_fp8_block(
    k: Kernel, dtype: str, element: str, block_rows: int, power_of_two: bool
) -> None:
    """Blocks of (block_rows, 128)."""
    source, form = SOURCES[dtype], fp8_format(element)
    outputs = [compact(k, "out", 1, 1), compact(k, "scale_inv", BLOCK, 4, block_rows)]
    walk = Walk(k, BLOCK, [matrix(k, source.nbytes)], outputs, block_rows)

    with k.range(k["rows"], block_rows) as row:
        lines = walk.lines(row)

        def body(inputs: list[Place], outputs: list[Place]) -> None:
            (src,), (codes, scales) = inputs, outputs

            def compute(keys: KeysOf) -> Value:
                return one_block(source, column_keys(k, source, src, lines, STEPS, keys))

            amax = without_nan(k, source, compute).as_f32()
            scale = fp8_scale(amax, form, power_of_two, k["epsilon"], INPUT_MAX[dtype])
            scales.start.store(1.0 / scale)
            factor = scale.splat(16)
            with k.range(lines) as i:
                for step, address in enumerate(vectors(source, src.line(i), STEPS)):
                    found = fp8_codes(source.pair(address), factor, form)
                    codes.line(i).at(step * VECTOR).store(found)

        walk.row(row, body)


@kernel(data=PTR, scale_inv=PTR, out=PTR, **COMPACT)
def dequantize_fp8_block(k: Kernel, element: str, block_rows: int, dtype: str) -> None:
    """Blocks of (block_rows, 128)."""
    form, sink = fp8_format(element), SINKS[dtype]
    inputs = [compact(k, "data", 1, 1), compact(k, "scale_inv", BLOCK, 4, block_rows)]
    walk = Walk(k, BLOCK, inputs, [compact(k, "out", 1, sink.nbytes)])

    def body(inputs: list[Place], outputs: list[Place]) -> None:
        factor = inputs[1].start.load(F32).splat(16)
        for step in range(STEPS):
            even, odd = decode_fp8_pair(inputs[0].start.at(step * VECTOR), form)
            place = outputs[0].start.at(step * VECTOR * sink.nbytes)
            sink.store(place, even * factor, odd * factor)

    with k.range(k["rows"]) as row:
        walk.row(row, body)
