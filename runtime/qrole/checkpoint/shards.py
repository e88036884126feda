"""The output's files, laid out from shapes alone: every tensor's place before a byte is written."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from qrole.checkpoint.headers import DTYPE_BITS
from qrole.checkpoint.layers import Layer, Selection
from qrole.checkpoint.layouts import Layout, Part
from qrole.checkpoint.source import Source, SourceTensor

__all__ = ["Place", "Shard", "Written", "index_text", "plan_shards"]


@dataclass(frozen=True)
class Written:
    """One tensor of the output.

    Attributes:
        name: Full name.
        dtype: safetensors dtype.
        shape: Dimensions.
        source: The source tensor it comes from.
        part: Which part of a layer it is; None for a tensor that is carried over.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: str
    part: Part | None

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True)
class Place:
    """Where a tensor stands.

    Attributes:
        shard: Name of the file.
        start: First byte, from the file's begin.
        tensor: What stands there.
    """

    shard: str
    start: int
    tensor: Written


@dataclass(frozen=True)
class Shard:
    """One file of the output.

    Attributes:
        name: File name.
        header: Its first bytes: length and JSON.
        nbytes: Its size.
        places: Its tensors, in the order of their bytes.
    """

    name: str
    header: bytes
    nbytes: int
    places: tuple[Place, ...]


def plan_shards(source: Source, selection: Selection, layout: Layout) -> tuple[Shard, ...]:
    """One output file per source file, tensors in the source's order within each alignment.

    safetensors readers view tensors in place, so wider dtypes come first: no tensor is misaligned
    and there are no holes.
    """
    by_tensor: dict[str, list[Layer]] = {}
    for layer in selection.layers.values():
        by_tensor.setdefault(layer.tensor, []).append(layer)
    files: dict[Path | None, list[Written]] = {}
    layers: dict[Path | None, list[Layer]] = {}
    for name, tensor in source.tensors.items():
        written = files.setdefault(tensor.file, [])
        if name in by_tensor:
            layers.setdefault(tensor.file, []).extend(by_tensor[name])
            for layer in by_tensor[name]:
                written += (_written(part, name) for part in layout.parts(layer))
        elif name not in selection.dropped:
            written.append(carried(tensor))
    count = len(files)
    names = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    if count == 1:
        names = ["model.safetensors"]
    return tuple(
        _shard(n, tensors, layout.metadata(layers.get(file, ())))
        for n, (file, tensors) in zip(names, files.items(), strict=True)
    )


def carried(tensor: SourceTensor) -> Written:
    """A tensor that is written as it is; FP8 codes become the bf16 values they stand for."""
    dtype = "BF16" if tensor.scale is not None else tensor.dtype
    return Written(tensor.name, dtype, tensor.shape, tensor.name, None)


def index_text(shards: Iterable[Shard]) -> str | None:
    """The index of several files; None for a single one."""
    shards = tuple(shards)
    if len(shards) < 2:
        return None
    places = [place for shard in shards for place in shard.places]
    weight_map = {p.tensor.name: p.shard for p in sorted(places, key=lambda p: p.tensor.name)}
    total = sum(place.tensor.nbytes for place in places)
    content = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return json.dumps(content, indent=2) + "\n"


def _written(part: Part, source: str) -> Written:
    return Written(part.name, part.dtype, part.shape, source, part)


def _shard(name: str, tensors: list[Written], metadata: Mapping[str, str]) -> Shard:
    ordered = sorted(tensors, key=lambda t: -DTYPE_BITS[t.dtype])
    entries: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    at = 0
    for tensor in ordered:
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": (at, at + tensor.nbytes),
        }
        at += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = struct.pack("<Q", len(text)) + text
    places, start = [], len(header)
    for tensor in ordered:
        places.append(Place(name, start, tensor))
        start += tensor.nbytes
    return Shard(name, header, start, tuple(places))
