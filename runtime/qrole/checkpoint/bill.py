"""What a job will cost, from headers alone: bytes per format, size, bits, memory, time."""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from qrole.checkpoint.encode import CHUNK_BYTES, ROW_STEP
from qrole.checkpoint.engines import Verdict
from qrole.checkpoint.headers import DTYPE_BITS
from qrole.checkpoint.job import ApplyOptions, Job, prepare, uncollected
from qrole.checkpoint.layers import Layer
from qrole.checkpoint.rates import encode_rate, quantizer_rate, write_rate
from qrole.checkpoint.shards import carried
from qrole.loading import LoadedModel
from qrole.plugins import Factory
from qrole_kernels.cpu.threads import default_threads

__all__ = ["HIGH_PRECISION", "Bill", "BillLine", "bill", "dry_run"]

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
        quantized_bits: Bits per quantized weight, scales included; `bits` where none is quantized.
        bits: Bits per element of the whole checkpoint.
        memory_bytes: Peak anonymous memory, estimated; calibration loads the model on top of it.
        seconds: Time, estimated from rates measured on this machine now, the page cache warm;
            calibration comes before it and is not estimated.
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


def dry_run(
    model: str | LoadedModel,
    factory: str | Factory | Callable[..., Any],
    options: ApplyOptions | None = None,
    workers: int = 0,
) -> Bill:
    """What `apply` with these arguments would cost; writes nothing.

    Raises:
        QroleError: What `apply` would refuse before it starts.
    """
    with uncollected():
        return bill(prepare(model, factory, options or ApplyOptions()), workers)


def bill(job: Job, workers: int = 0) -> Bill:
    """The bill of a job, from shapes; reads no weights and lays nothing out."""
    own = job.layout.own_quantizers
    workers = 1 if own else workers or default_threads()
    kinds = _kinds(job)
    lines = _merged([*_quantized(job, kinds), *_carried(job)])
    quantized = [line for line in lines if line.name != HIGH_PRECISION] or lines
    numel = sum(line.numel for line in quantized)
    nbytes = sum(line.output_bytes for line in lines)
    return Bill(
        lines=lines,
        output_bytes=nbytes,
        quantized_bits=8 * sum(line.output_bytes for line in quantized) / numel,
        bits=8 * nbytes / sum(line.numel for line in lines),
        memory_bytes=(_TORCH_BYTES if own else _BASE_BYTES)
        + workers * max(_workspace_bytes(job, layers[0]) for layers in kinds),
        seconds=_seconds(job, nbytes) / workers,
        workers=workers,
        calibrated=len(job.static_layers),
        verdicts=job.verdicts,
        notes=job.selection.notes,
    )


def _kinds(job: Job) -> list[list[Layer]]:
    """Layers by all that their sizes depend on; few kinds are distinct."""
    tensors = job.source.tensors
    found: dict[tuple[str, int, int, str], list[Layer]] = defaultdict(list)
    for layer in job.selection.layers.values():
        stored = tensors[layer.tensor].stored_dtype
        found[layer.scheme.name, layer.rows, layer.columns, stored].append(layer)
    return list(found.values())


def _quantized(job: Job, kinds: Iterable[list[Layer]]) -> Iterator[BillLine]:
    """One line per kind."""
    for layers in kinds:
        first, count = layers[0], len(layers)
        numel = count * first.rows * first.columns
        source = DTYPE_BITS[job.source.tensors[first.tensor].stored_dtype]
        parts = sum(math.prod(p.shape) * DTYPE_BITS[p.dtype] for p in job.layout.parts(first))
        yield BillLine(first.scheme.name, count, numel, numel * source // 8, count * parts // 8)


def _carried(job: Job) -> Iterator[BillLine]:
    """One line per tensor that is no layer."""
    taken = {layer.tensor for layer in job.selection.layers.values()}
    for name, tensor in job.source.tensors.items():
        if name not in taken and name not in job.selection.dropped:
            numel, nbytes = math.prod(tensor.shape), carried(tensor).nbytes
            yield BillLine(HIGH_PRECISION, 1, numel, tensor.nbytes, nbytes)


def _merged(lines: Iterable[BillLine]) -> tuple[BillLine, ...]:
    """The sum of each format's lines, in order of first appearance."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for line in lines:
        share = (line.tensors, line.numel, line.source_bytes, line.output_bytes)
        totals[line.name] = [*map(operator.add, totals[line.name], share)]
    return tuple(BillLine(name, *total) for name, total in totals.items())


def _workspace_bytes(job: Job, layer: Layer) -> int:
    """One worker's buffers for a layer: decoded source, codes and scales; or a quantizer's own."""
    tensor = job.source.tensors[layer.tensor]
    decoded = 4 if tensor.scale is not None else 0
    if job.layout.own_quantizers:  # takes the whole weight
        return (_QUANTIZER_BYTES + decoded) * layer.rows * layer.columns
    row = layer.columns * DTYPE_BITS[tensor.dtype] // 8
    step = max(CHUNK_BYTES // row // ROW_STEP, 1) * ROW_STEP
    return (decoded + 2) * min(step, layer.rows) * layer.columns


def _rate(layer: Layer) -> float:
    if layer.native is not None:
        return quantizer_rate(layer.native)
    return encode_rate(layer.scheme.encoding)


def _seconds(job: Job, nbytes: int) -> float:
    """Time of one worker for `nbytes` of output, the disk aside."""
    seconds = nbytes / write_rate()
    for layers in job.selection.schemes().values():
        numel = sum(layer.rows * layer.columns for layer in layers)
        seconds += numel / _rate(layers[0])
    return seconds
