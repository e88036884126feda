"""What a job will cost, from headers alone: bytes per format, size, bits, memory, time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from qrole.checkpoint.encode import CHUNK_BYTES, ROW_STEP
from qrole.checkpoint.engines import Verdict
from qrole.checkpoint.headers import DTYPE_BITS
from qrole.checkpoint.job import Job
from qrole.checkpoint.layers import Layer
from qrole.checkpoint.rates import copy_rate, encode_rate, quantizer_rate
from qrole.checkpoint.shards import carried
from qrole_kernels.cpu.threads import default_threads

__all__ = ["HIGH_PRECISION", "Bill", "BillLine", "bill"]

#: Anonymous memory of the process itself: the interpreter, the compiled kernels.
_BASE_BYTES = 60 << 20
#: The same with torch.
_TORCH_BYTES = 160 << 20
#: Largest use seen per element of a quantizer's input, transposed and transformed (NVFP4): 7 bytes.
_QUANTIZER_BYTES = 8
HIGH_PRECISION = "high precision"


@dataclass(frozen=True)
class BillLine:
    """One format's share.

    Attributes:
        name: The scheme, or `high precision`.
        tensors: Weights in it; of high precision, all tensors that are carried over.
        numel: Their elements.
        source_bytes: Their bytes in the source.
        output_bytes: Their bytes in the output, scales included.
    """

    name: str
    tensors: int
    numel: int
    source_bytes: int
    output_bytes: int


@dataclass(frozen=True)
class Bill:
    """The cost of a job.

    Attributes:
        lines: Shares by format.
        output_bytes: Bytes of all tensors; headers add about 100 per tensor.
        quantized_bits: Bits per quantized weight, scales included.
        bits: Bits per element of the whole checkpoint.
        memory_bytes: Peak anonymous memory, estimated; calibration loads the model on top of it.
        seconds: Time, estimated from rates measured on this machine now, the page cache warm.
        workers: Threads that the estimates are for.
        calibrated: Layers whose input scales have to be calibrated first.
        verdicts: What each engine makes of the result.
        notes: What the user should know, in sentences.
    """

    lines: tuple[BillLine, ...]
    output_bytes: int
    quantized_bits: float
    bits: float
    memory_bytes: int
    seconds: float
    workers: int
    calibrated: int
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The bill as JSON values, under the schema `qrole.bill/1`."""
        return {"schema": "qrole.bill/1", **asdict(self)}


def bill(job: Job, workers: int = 0) -> Bill:
    """The bill of a job, from shapes; reads no weights and lays nothing out."""
    own = job.layout.own_quantizers
    workers = 1 if own else workers or default_threads()
    lines = tuple(_lines(job))
    quantized = [line for line in lines if line.name != HIGH_PRECISION]
    numel = sum(line.numel for line in quantized)
    nbytes = sum(line.output_bytes for line in lines)
    return Bill(
        lines=lines,
        output_bytes=nbytes,
        quantized_bits=8 * sum(line.output_bytes for line in quantized) / numel,
        bits=8 * nbytes / sum(line.numel for line in lines),
        memory_bytes=(_TORCH_BYTES if own else _BASE_BYTES) + workers * _workspace_bytes(job),
        seconds=_seconds(job, lines) / workers,
        workers=workers,
        calibrated=len(job.static_layers),
        verdicts=job.verdicts,
        notes=job.selection.notes,
    )


def _lines(job: Job) -> Iterable[BillLine]:
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    tensors, taken = job.source.tensors, set()
    for (scheme, _, _), layers in _shapes(job).items():
        total, first = totals[scheme], layers[0]
        numel = first.rows * first.columns
        stored = sum(math.prod(p.shape) * DTYPE_BITS[p.dtype] for p in job.layout.parts(first))
        total[0] += len(layers)
        total[1] += len(layers) * numel
        total[3] += len(layers) * stored // 8
        for layer in layers:
            taken.add(layer.tensor)
            total[2] += numel * DTYPE_BITS[tensors[layer.tensor].stored_dtype] // 8
    for name, tensor in tensors.items():
        if name in taken or name in job.selection.dropped:
            continue
        total = totals[HIGH_PRECISION]
        total[0] += 1
        total[1] += math.prod(tensor.shape)
        total[2] += tensor.nbytes
        total[3] += carried(tensor).nbytes
    for name, total in totals.items():
        yield BillLine(name, *total)


def _shapes(job: Job) -> dict[tuple[str, int, int], list[Layer]]:
    """Layers by what their size depends on."""
    found: dict[tuple[str, int, int], list[Layer]] = defaultdict(list)
    for layer in job.selection.layers.values():
        found[layer.scheme.name, layer.rows, layer.columns].append(layer)
    return found


def _workspace_bytes(job: Job) -> int:
    """Buffers of one worker for the widest layer: decoded source, codes and scales."""
    largest = 0
    if job.layout.own_quantizers:
        return max(_torch_bytes(job, layer) for layer in job.selection.layers.values())
    for layer in job.selection.layers.values():
        tensor = job.source.tensors[layer.tensor]
        row = layer.columns * DTYPE_BITS[tensor.dtype] // 8
        step = max(CHUNK_BYTES // row // ROW_STEP, 1) * ROW_STEP
        elements = min(step, layer.rows) * layer.columns
        decoded = 4 * elements if tensor.scale is not None else 0
        largest = max(largest, decoded + 2 * elements)
    return largest


def _torch_bytes(job: Job, layer: Layer) -> int:
    """What a quantizer holds of a whole weight, which is decoded first where it is in FP8."""
    decoded = 4 if job.source.tensors[layer.tensor].scale is not None else 0
    return (_QUANTIZER_BYTES + decoded) * layer.rows * layer.columns


def _rate(layer: Layer) -> float:
    if layer.native is not None:
        return quantizer_rate(layer.native)
    return encode_rate(layer.scheme.encoding)


def _seconds(job: Job, lines: Iterable[BillLine]) -> float:
    """Time of one worker, the disk aside."""
    seconds = sum(line.output_bytes for line in lines) / copy_rate()
    for layers in job.selection.schemes().values():
        numel = sum(layer.rows * layer.columns for layer in layers)
        seconds += numel / _rate(layers[0])
    return seconds
