"""The nouns between a plan and a layout: linear layers as they will be stored."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from qrole.checkpoint.native.weights import NativeWeight
from qrole.checkpoint.schemes import Scheme, WeightFormat

__all__ = ["Kept", "Layer", "Selection"]


class Layer(NamedTuple):
    """One quantized linear layer.

    A named tuple, because a checkpoint has tens of thousands and a dataclass takes longer to make.

    Attributes:
        module: Its name in the written checkpoint; parts are stored as `<module>.<part>`.
        tensor: The source tensor that holds its weight.
        first_row: First row of the weight in that tensor, seen as a matrix of `columns`; not 0
            for experts that the source holds in one tensor.
        rows: out_features.
        columns: in_features.
        scheme: How it is stored.
        weight: What the encoder is told.
        slot: Id of the weight's slot.
        place: Module, group and copy of its slots in the plan.
        answer: Label of the quantizer that the factory gave it.
        note: Where the stored scheme differs from the plan; `""` where it does not.
        group: Names of the layers that share its global scale, its own included.
        native: Its own quantizer, which makes what the layout native stores; None for others.
    """

    module: str
    tensor: str
    first_row: int
    rows: int
    columns: int
    scheme: Scheme
    weight: WeightFormat
    slot: str
    place: tuple[str, str, int]
    answer: str
    note: str
    group: tuple[str, ...]
    native: NativeWeight | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor with the shape of a weight that stays as it is.

    Attributes:
        tensor: Its name.
        module: The module that holds it.
        reason: Why, in a few words.
    """

    tensor: str
    module: str
    reason: str


@dataclass(frozen=True)
class Selection:
    """What is quantized, and how; what is not, and why.

    Attributes:
        layers: By module name, in the source's order.
        kept: Every other tensor of at least two dimensions, by tensor name.
        dropped: Aliases of tied tensors that are not written, with the tensor they share.
        ignore: Module names that a config has to list as not quantized, absent ones that engines
            look up included.
        modules: All module names of the written checkpoint that hold a weight, and `ignore`.
        notes: What the user should know, in sentences.
    """

    layers: dict[str, Layer]
    kept: dict[str, Kept]
    dropped: dict[str, str]
    ignore: tuple[str, ...]
    modules: tuple[str, ...]
    notes: tuple[str, ...]

    def schemes(self) -> dict[str, list[Layer]]:
        """Layers by scheme name, in order of first appearance."""
        return self._by_scheme

    @functools.cached_property
    def _by_scheme(self) -> dict[str, list[Layer]]:
        found: dict[str, list[Layer]] = {}
        for layer in self.layers.values():
            found.setdefault(layer.scheme.name, []).append(layer)
        return found
