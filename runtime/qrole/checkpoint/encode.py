"""Encoding weights: amax over a matrix, then codes and block scales, a few rows at a time.

One table, `ENCODERS`, over the CPU kernels; works on addresses and needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from qrole.checkpoint.headers import DTYPE_BITS
from qrole.checkpoint.layers import Layer
from qrole.checkpoint.memory import Buffer, UnusableSourceError
from qrole.checkpoint.scalars import fp8_scale
from qrole.checkpoint.schemes import WeightFormat
from qrole.checkpoint.source import Source, SourceTensor
from qrole_kernels import cpu

__all__ = ["Chunk", "Workspace", "decoded", "encode", "weight_amax"]

#: Bytes of the source that are taken at a time: codes are still in the cache when they are written.
CHUNK_BYTES = 2 << 20
#: Every block height divides it, so that a chunk holds whole blocks.
ROW_STEP = 128


@dataclass(frozen=True)
class Chunk:
    """Encoded rows.

    Attributes:
        amax: The amax that was given, or that of these rows.
        data: Codes.
        scale: Block scales; empty for formats that have none.
    """

    amax: float
    data: memoryview
    scale: memoryview


class Workspace:
    """The buffers of one worker; they grow to what the largest chunk needs."""

    def __init__(self) -> None:
        self._buffers: dict[str, Buffer] = {}

    def buffer(self, purpose: str, nbytes: int) -> Buffer:
        """Memory of at least `nbytes`, whose content is undefined."""
        held = self._buffers.get(purpose)
        if held is None or held.nbytes < nbytes:
            held = self._buffers[purpose] = Buffer(nbytes)
        return held


def weight_amax(source: Source, layer: Layer, work: Workspace) -> float:
    """The largest magnitude of a layer's weight.

    Raises:
        UnusableSourceError: The weight is not finite.
    """
    amax = 0.0
    for first, count in _chunks(source, layer.tensor, layer.rows, layer.columns):
        with _rows(source, layer, first, count, work) as (address, dtype):
            amax = max(amax, _finite_amax(layer, Rows(address, dtype, count, layer.columns)))
    return amax


def encode(source: Source, layer: Layer, amax: float | None, work: Workspace) -> Iterator[Chunk]:
    """The codes and scales of a layer's weight, rows in order.

    Args:
        source: Holds the weight.
        layer: What to encode, and as what.
        amax: The amax that formats with one scale per tensor use, of the whole fused group; None
            for the others.
        work: Buffers; a chunk is valid until the next one is asked for.

    Raises:
        UnusableSourceError: The weight is not finite.
    """
    stored = layer.scheme.stored
    encoder = ENCODERS[layer.weight.encoding]
    for first, count in _chunks(source, layer.tensor, layer.rows, layer.columns):
        data = work.buffer("data", math.prod(stored.data_shape(count, layer.columns)))
        scale = work.buffer("scale", 4 * math.prod(stored.scale_shape(count, layer.columns)))
        with _rows(source, layer, first, count, work) as (address, dtype):
            rows = Rows(address, dtype, count, layer.columns)
            found = _finite_amax(layer, rows) if amax is None else amax
            ndata, nscale = encoder(rows, layer.weight, found, data, scale)
        yield Chunk(found, data.view[:ndata], scale.view[:nscale])


@dataclass(frozen=True)
class Rows:
    """Contiguous rows in memory.

    Attributes:
        address: Of the first element.
        dtype: `f32`, `bf16` or `f16`.
        rows: Number of rows.
        columns: Elements of a row.
    """

    address: int
    dtype: str
    rows: int
    columns: int

    @property
    def arguments(self) -> tuple[int, str, int, int, int]:
        """What every kernel takes first."""
        return (self.address, self.dtype, self.rows, self.columns, self.columns)


#: Writes codes and scales and returns how many bytes of each.
Encoder = Callable[[Rows, WeightFormat, float, Buffer, Buffer], tuple[int, int]]


def _fp8_tensor(
    x: Rows, fmt: WeightFormat, amax: float, data: Buffer, scale: Buffer
) -> tuple[int, int]:
    factor = fp8_scale(amax, power_of_two=fmt.power_of_two, epsilon=fmt.epsilon)
    cpu.host_quantize_fp8(*x.arguments, factor, "e4m3", data.address, threads=1)
    return x.rows * x.columns, 0


def _fp8_channel(
    x: Rows, fmt: WeightFormat, amax: float, data: Buffer, scale: Buffer
) -> tuple[int, int]:
    cpu.host_quantize_fp8_rows(*x.arguments, "e4m3", data.address, scale.address, threads=1)
    return x.rows * x.columns, 4 * x.rows


def _fp8_block(
    x: Rows, fmt: WeightFormat, amax: float, data: Buffer, scale: Buffer
) -> tuple[int, int]:
    options = ("e4m3", 128, fmt.power_of_two, fmt.epsilon)
    cpu.host_quantize_fp8_block(*x.arguments, *options, data.address, scale.address, threads=1)
    return x.rows * x.columns, 4 * -(-x.rows // 128) * -(-x.columns // 128)


def _mxfp8(x: Rows, fmt: WeightFormat, amax: float, data: Buffer, scale: Buffer) -> tuple[int, int]:
    options = ("e4m3", fmt.block_rows, 32)
    cpu.host_quantize_mxfp8(*x.arguments, *options, data.address, scale.address, threads=1)
    width = -(-x.columns // 32)
    if fmt.block_rows > 1:
        _repeat_rows(scale, width, x.rows, fmt.block_rows)
    return x.rows * x.columns, width * x.rows


def _mxfp4(x: Rows, fmt: WeightFormat, amax: float, data: Buffer, scale: Buffer) -> tuple[int, int]:
    cpu.host_quantize_mxfp4(*x.arguments, fmt.rule, data.address, scale.address, threads=1)
    return x.rows * x.columns // 2, x.rows * -(-x.columns // 32)


def _nvfp4(x: Rows, fmt: WeightFormat, amax: float, data: Buffer, scale: Buffer) -> tuple[int, int]:
    options = (amax, fmt.block_rows, fmt.e4m3_max)
    places = (data.address, scale.address)
    cpu.host_quantize_nvfp4(
        *x.arguments, *options, *places, four_over_six=fmt.four_over_six, threads=1
    )
    return x.rows * x.columns // 2, x.rows * -(-x.columns // 16)


ENCODERS: dict[str, Encoder] = {
    "fp8_tensor": _fp8_tensor,
    "fp8_channel": _fp8_channel,
    "fp8_block": _fp8_block,
    "mxfp8": _mxfp8,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
}


def _repeat_rows(scale: Buffer, width: int, rows: int, height: int) -> None:
    """One row of scales per block of `height` rows becomes one per row, in place."""
    blocks = bytes(scale.view[: -(-rows // height) * width])
    lines = (blocks[i : i + width] * height for i in range(0, len(blocks), width))
    scale.view[: rows * width] = b"".join(lines)[: rows * width]


def decoded(
    source: Source, tensor: SourceTensor, dtype: str, work: Workspace
) -> Iterator[memoryview]:
    """The values of an FP8 weight in another dtype, rows in order; each valid until the next."""
    rows, columns = tensor.shape
    for first, count in _chunks(source, tensor.name, rows, columns):
        nbytes = count * columns * (4 if dtype == "f32" else 2)
        room = work.buffer("source", count * columns * 4)
        with source.rows(tensor, first, count, columns, room, dtype):
            yield room.view[:nbytes]


def _chunks(source: Source, tensor: str, rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each portion, in whole blocks."""
    itemsize = DTYPE_BITS[source.tensors[tensor].dtype] // 8
    step = max(CHUNK_BYTES // (columns * itemsize) // ROW_STEP, 1) * ROW_STEP
    for first in range(0, rows, step):
        yield first, min(step, rows - first)


def _rows(
    source: Source, layer: Layer, first: int, count: int, work: Workspace
) -> AbstractContextManager[tuple[int, str]]:
    room = work.buffer("source", count * layer.columns * 4)
    tensor = source.tensors[layer.tensor]
    return source.rows(tensor, layer.first_row + first, count, layer.columns, room)


def _finite_amax(layer: Layer, x: Rows) -> float:
    amax: float = cpu.host_amax(*x.arguments, keep_nan=True, threads=1)
    if not math.isfinite(amax):
        raise _not_finite(layer, "a NaN" if math.isnan(amax) else "an infinity")
    return amax


def _not_finite(layer: Layer, what: str) -> UnusableSourceError:
    return UnusableSourceError(
        f"the weight {layer.tensor} holds {what}",
        expected="finite weights",
        hint="fetch the file again, or keep this layer in high precision",
    )
