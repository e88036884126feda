"""Decoded weights against the source, element by element, with the bound that rounding has."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING

from qrole.checkpoint.encode import ROW_STEP, Workspace
from qrole.checkpoint.layouts import Content
from qrole.checkpoint.source import Source, SourceTensor
from qrole.checkpoint.verification.decoding import StoredLayer, decode
from qrole.checkpoint.verification.reading import Reader
from qrole.checkpoint.verification.report import LayerError

if TYPE_CHECKING:
    import torch

__all__ = ["layer_error"]

#: Elements that are compared at a time.
_ELEMENTS = 1 << 20
#: Room for the last bits of fp32 arithmetic.
_SLACK = 1.0 + 1e-4


def layer_error(
    layer: StoredLayer,
    scheme: str,
    reader: Reader,
    source: Source,
    tensor: SourceTensor,
    first_row: int,
) -> LayerError:
    """The error of one layer.

    Args:
        layer: Its stored parts.
        scheme: Its scheme, for the report.
        reader: Reads them.
        source: Where it came from.
        tensor: The tensor there.
        first_row: First row of the weight in that tensor.
    """
    step = max(_ELEMENTS // layer.columns // ROW_STEP, 1) * ROW_STEP
    work = Workspace()
    noise = signal = largest = worst = 0.0
    for first in range(0, layer.rows, step):
        count = min(step, layer.rows - first)
        values, unit = decode(layer, reader, first, count)
        wanted = _source_rows(source, tensor, first_row + first, count, layer.columns, work)
        error = (values - wanted).abs()
        ratio = error / _bound(layer, reader, wanted.abs(), unit.abs())
        noise += float(error.double().square().sum())
        signal += float(wanted.double().square().sum())
        largest = max(largest, _maximum(error))
        worst = max(worst, _maximum(ratio.nan_to_num(nan=math.inf, posinf=math.inf)))
    return LayerError(layer.module, scheme, _decibels(signal, noise), largest, worst)


def _maximum(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal and math.isfinite(noise) else -math.inf


def _bound(
    layer: StoredLayer, reader: Reader, magnitude: torch.Tensor, unit: torch.Tensor
) -> torch.Tensor:
    """The largest error that rounding to the nearest code explains, with a spare bit for scales."""
    import torch

    encoding = layer.encoding
    if encoding.element_bits == 8:
        bound = torch.maximum(magnitude / 16, unit / 1024)
    else:
        ratio = magnitude / unit
        half = torch.full_like(ratio, 0.25)
        half[ratio > 2] = 0.5
        half[ratio > 4] = 1.0
        if encoding.name == "mxfp4":  # the floor rule lets values up to 8 saturate at 6
            half[ratio > 7] = 2.0
        bound = half.nan_to_num(nan=1.0) * unit
    if encoding.name == "nvfp4":
        # A small block's scale is an E4M3 subnormal, a multiple of 2^-9 of the tensor's scale.
        bound = bound + 6 * 2.0**-10 * _whole(layer, reader)
    tiny = torch.finfo(torch.float32).tiny
    return bound * _SLACK + tiny


def _whole(layer: StoredLayer, reader: Reader) -> float:
    if Content.WEIGHT_DIVISOR in layer.parts:
        return 1.0 / (reader.number(layer.parts[Content.WEIGHT_DIVISOR]) or math.inf)
    return reader.number(layer.parts[Content.WEIGHT_MULTIPLIER])


def _source_rows(
    source: Source, tensor: SourceTensor, first: int, count: int, columns: int, work: Workspace
) -> torch.Tensor:
    """Source rows as fp32 (count, columns)."""
    import torch

    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    room = work.buffer("source", count * columns * 4)
    with source.rows(tensor, first, count, columns, room) as (address, dtype):
        nbytes = count * columns * dtypes[dtype].itemsize
        held = (ctypes.c_char * nbytes).from_address(address)
        rows = torch.frombuffer(held, dtype=dtypes[dtype]).reshape(count, columns)
        return rows.to(torch.float32, copy=True)
