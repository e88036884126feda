"""FP8 with one fp32 scale per tensor or per row (spec: sections 1 and 2)."""

from __future__ import annotations

import math

from qrole_kernels.cpu.amax import row_amax
from qrole_kernels.cpu.groups import COMPACT, MATRIX, Walk, compact, matrix
from qrole_kernels.cpu.jit import kernel
from qrole_kernels.cpu.rounding import FLOAT32_MAX, fp8_codes
from qrole_kernels.cpu.simd import F32, PTR, Kernel, Value, select
from qrole_kernels.cpu.sink import SINKS, decode_fp8_pair
from qrole_kernels.cpu.source import AHEAD, SOURCES, VECTOR, Source
from qrole_kernels.formats import ElementFormat, fp8_format

STEPS = 4
GROUP = STEPS * VECTOR


@kernel(src=PTR, out=PTR, scale=F32, **MATRIX)
def quantize_fp8(k: Kernel, dtype: str, element: str) -> None:
    """A given scale for all elements."""
    source, form = SOURCES[dtype], fp8_format(element)
    with k.range(k["rows"]) as row:
        quantize_row(k, source, form, row, k["scale"])


@kernel(src=PTR, out=PTR, scale_inv=PTR, **MATRIX)
def quantize_fp8_rows(k: Kernel, dtype: str, element: str) -> None:
    """Each row with the scale of its own amax."""
    source, form = SOURCES[dtype], fp8_format(element)
    with k.range(k["rows"]) as row:
        scale = fp8_scale(row_amax(k, source, row), form, power_of_two=False)
        k.pointer("scale_inv").at(row * 4).store(1.0 / scale)
        quantize_row(k, source, form, row, scale)


def quantize_row(k: Kernel, source: Source, form: ElementFormat, row: Value, scale: Value) -> None:
    """Codes of one row under one scale."""
    factor = scale.splat(16)
    walk = Walk(k, GROUP, [matrix(k, source.nbytes)], [compact(k, "out", 1, 1)])
    with walk.groups(row) as (src, codes):
        for i, address in enumerate(source.vectors(src.start, STEPS)):
            source.prefetch(address.at(AHEAD))
            codes.start.at(i * VECTOR).store(fp8_codes(source.pair(address), factor, form))


def fp8_scale(
    amax: Value,
    form: ElementFormat,
    power_of_two: bool,
    epsilon: Value | float = 0.0,
    value_for_inf: float = FLOAT32_MAX,
) -> Value:
    """The scale that maps `amax` (not NaN) to the largest value of the format, in fp32."""
    amax = select(amax < epsilon, epsilon, amax)
    scale = form.max / amax
    scale = select(scale.equals(math.inf), value_for_inf, scale)
    if power_of_two:
        scale = (scale.bits() & 0xFF800000).as_f32()
    usable = (amax > 0.0) & (amax < math.inf)
    return select(usable, scale, 1.0)


@kernel(data=PTR, scale_inv=F32, out=PTR, **COMPACT)
def dequantize_fp8(k: Kernel, element: str, dtype: str) -> None:
    """One scale for all codes."""
    with k.range(k["rows"]) as row:
        dequantize_row(k, element, dtype, row, k["scale_inv"])


@kernel(data=PTR, scale_inv=PTR, out=PTR, **COMPACT)
def dequantize_fp8_rows(k: Kernel, element: str, dtype: str) -> None:
    """One scale per row."""
    with k.range(k["rows"]) as row:
        dequantize_row(k, element, dtype, row, k.pointer("scale_inv").at(row * 4).load(F32))


def dequantize_row(k: Kernel, element: str, dtype: str, row: Value, scale_inv: Value) -> None:
    """Values of one row under one scale."""
    form, sink = fp8_format(element), SINKS[dtype]
    factor = scale_inv.splat(16)
    walk = Walk(k, GROUP, [compact(k, "data", 1, 1)], [compact(k, "out", 1, sink.nbytes)])
    with walk.groups(row) as (data, out):
        for i in range(STEPS):
            even, odd = decode_fp8_pair(data.start.at(i * VECTOR), form)
            sink.store(out.start.at(i * sink.vector_nbytes), even * factor, odd * factor)
