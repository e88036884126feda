"""The units of work: what one worker does at a time, and what the journal records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qrole.checkpoint.layers import Layer, Selection
from qrole.checkpoint.shards import Place, Shard
from qrole.checkpoint.source import Source

__all__ = ["Unit", "plan_units"]

#: Carried-over tensors are joined to units of about this many bytes.
COPY_BYTES = 16 << 20


@dataclass(frozen=True)
class Unit:
    """Layers that share an amax, or tensors to carry over.

    Attributes:
        key: Name of its first layer or tensor.
        layers: Layers to encode.
        copies: Places of tensors that are carried over.
        nbytes: Bytes of the source that it reads.
    """

    key: str
    layers: tuple[Layer, ...]
    copies: tuple[Place, ...]
    nbytes: int


def plan_units(source: Source, selection: Selection, shards: Iterable[Shard]) -> list[Unit]:
    """All units, largest first, so that none is left for long when the others are done."""
    units = []
    seen: set[str] = set()
    for layer in selection.layers.values():
        if layer.module in seen:
            continue
        names = layer.group if layer.scheme.stored.shared else (layer.module,)
        group = tuple(selection.layers[name] for name in names)
        seen.update(names)
        nbytes = sum(_source_bytes(source, member) for member in group)
        units.append(Unit(layer.module, group, (), nbytes))
    for shard in shards:
        units += _copies(place for place in shard.places if place.tensor.part is None)
    return sorted(units, key=lambda unit: -unit.nbytes)


def _copies(places: Iterable[Place]) -> Iterator[Unit]:
    batch: list[Place] = []
    nbytes = 0
    for place in places:
        batch.append(place)
        nbytes += place.tensor.nbytes
        if nbytes >= COPY_BYTES:
            yield Unit(batch[0].tensor.name, (), tuple(batch), nbytes)
            batch, nbytes = [], 0
    if batch:
        yield Unit(batch[0].tensor.name, (), tuple(batch), nbytes)


def _source_bytes(source: Source, layer: Layer) -> int:
    tensor = source.tensors[layer.tensor]
    return tensor.nbytes * layer.rows * layer.columns // math.prod(tensor.shape)
