"""Checkpoints of the layout native as they are on the disk, and their weights as they were made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from qrole.checkpoint.headers import TensorInfo, read_headers
from qrole.checkpoint.layouts.base import Content
from qrole.checkpoint.layouts.native import native_parts
from qrole.checkpoint.manifest import MANIFEST, read_manifest
from qrole.checkpoint.native.descriptions import both_ways
from qrole.checkpoint.native.detection import descriptions
from qrole.checkpoint.native.weights import NativeWeight
from qrole.checkpoint.schemes import ENCODINGS, WeightFormat
from qrole.checkpoint.stored import StoredModel, StoredWeight
from qrole.checkpoint.verification.decoding import StoredLayer
from qrole.errors import CheckpointError
from qrole.loading import read_config

if TYPE_CHECKING:
    import torch

    from qrole.quantizers import QuantizedTensor, Representation

__all__ = [
    "NativeModel",
    "NativeWeights",
    "complain_of_manifest",
    "open_native",
    "read_native",
    "read_record",
]

Complain = Callable[[str, str, str], None]

#: Last name components of what this layout stores of a weight.
_PARTS = frozenset(content.value for content in Content if "wise" in content.value)
_RECORDED = {"quantizer", "dtype", "seed", "shape", "sha256"}


@dataclass(frozen=True)
class NativeWeights:
    """The weights that the files of a checkpoint describe.

    Attributes:
        tensors: All stored tensors.
        described: How each weight was quantized, by module.
        layers: The stored parts of those that are whole, by module.
    """

    tensors: dict[str, TensorInfo]
    described: dict[str, NativeWeight]
    layers: dict[str, StoredLayer]


@dataclass(frozen=True)
class NativeModel(StoredModel):
    """A checkpoint of the layout native whose tensors are all accounted for.

    Attributes:
        described: How each weight was quantized, by module.
    """

    described: dict[str, NativeWeight] = field(default_factory=dict)

    @override
    def quantized(self, module: str, dtype: torch.dtype) -> QuantizedTensor:
        """The weight of a module, bit for bit what its quantizer made."""
        import torch

        from qrole.quantizers import QuantizedTensor

        layer, weight = self.weights[module].layer, self.described[module]
        rowwise = self._representation(layer, "rowwise")
        columnwise = self._representation(layer, "columnwise") or rowwise
        shape = torch.Size((layer.rows, layer.columns))
        return QuantizedTensor(shape, dtype, both_ways(weight.quantizer), rowwise, columnwise)

    def _representation(self, layer: StoredLayer, usage: str) -> Representation | None:
        from qrole.quantizers import Representation

        data, scale, amax = (
            layer.parts.get(Content(name))
            for name in (f"{usage}_data", f"{usage}_scale_inv", f"amax_{usage}")
        )
        if data is None:
            return None
        return Representation(
            self.tensor(data),
            None if scale is None else self.tensor(scale),
            None if amax is None else self.tensor(amax),
        )


def read_native(directory: Path, complain: Complain) -> NativeWeights:
    """The weights that a checkpoint describes; complains about what is not as described.

    Raises:
        CheckpointError: Files are missing or malformed, or a description is.
    """
    tensors = read_headers(directory)
    described, layers = {}, {}
    known: set[str] = set()
    for module, record in descriptions(tensors).items():
        weight, rows, columns = NativeWeight.of_json(record)
        described[module] = weight
        parts = _parts(module, weight, rows, columns, tensors, complain)
        known |= {f"{module}.weight.{content}" for content in parts}
        if len(parts) == len(native_parts(module, weight, rows, columns)):
            layers[module] = StoredLayer(module, ENCODINGS["native"], rows, columns, parts)
    for name in tensors:
        module, _, last = name.rpartition(".")
        broken = module.removesuffix(".weight") in described and name not in known
        if last in _PARTS and module.endswith(".weight") and name not in known and not broken:
            complain("stray-part", name, "belongs to no weight that the metadata describe")
    return NativeWeights(tensors, described, layers)


def open_native(directory: Path) -> NativeModel:
    """Opens a checkpoint of this layout; values are read when they are asked for.

    Raises:
        CheckpointError: A file is missing or malformed, or tensors and description disagree.
    """
    problems: list[str] = []

    def complain(kind: str, where: str, message: str) -> None:
        problems.append(f"{where}: {message} [{kind}]")

    found = read_native(directory, complain)
    record = read_record(directory)
    complain_of_manifest(found, record, complain)
    if problems:
        raise CheckpointError(
            f"{directory} is not what its metadata describe: {'; '.join(problems[:3])}"
            + (f", and {len(problems) - 3} more" if len(problems) > 3 else ""),
            expected="every part of every described weight, and no other",
            hint="`qrole verify` lists everything; write the checkpoint again",
        )
    entries = record["layers"]
    parts = {info.name for layer in found.layers.values() for info in layer.parts.values()}
    return NativeModel(
        directory=directory,
        config=read_config(directory) or {},
        weights={
            module: StoredWeight(layer, WeightFormat("native"), None, *_place(entries[module]))
            for module, layer in found.layers.items()
        },
        plain={name: info for name, info in found.tensors.items() if name not in parts},
        inputs={},
        tied=dict(record["dropped"]),
        described=found.described,
    )


def read_record(directory: Path) -> dict[str, Any]:
    """The manifest of a checkpoint of this layout, whose entries are whole.

    Raises:
        CheckpointError: There is none, or it is malformed.
    """
    record = read_manifest(directory)
    try:
        whole = isinstance(record["kept"], dict) and isinstance(record["dropped"], dict)
        entries = [(e["tensor"], e["first_row"], e["native"]) for e in record["layers"].values()]
        for tensor, first_row, native in entries:
            whole = whole and isinstance(tensor, str) and isinstance(first_row, int)
            whole = whole and native.keys() == _RECORDED and len(native["shape"]) == 2
    except (KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise CheckpointError(
            f"{directory / MANIFEST} is malformed",
            expected="the manifest that `qrole apply --layout native` writes",
            hint="write the checkpoint again with this version",
        )
    return record


def complain_of_manifest(
    found: NativeWeights, record: Mapping[str, Any], complain: Complain
) -> None:
    """Complains where the manifest and the files' metadata differ, or a kept tensor is lost."""
    entries = record["layers"]
    for module in sorted(entries.keys() | found.described.keys()):
        weight = found.described.get(module)
        entry = entries.get(module)
        if weight is None or entry is None:
            where = "the manifest" if entry is not None else "the files' metadata"
            complain("manifest-differs", module, f"only {where} tells of it")
            continue
        told = {key: entry["native"][key] for key in ("quantizer", "dtype", "seed", "shape")}
        if told != weight.to_json(*told["shape"]):
            complain("manifest-differs", module, "is described differently in the manifest")
    for name in record["kept"]:
        if name not in found.tensors:
            complain("lost-tensor", name, f"is not there; {MANIFEST} lists it")


def _parts(
    module: str,
    weight: NativeWeight,
    rows: int,
    columns: int,
    tensors: Mapping[str, TensorInfo],
    complain: Complain,
) -> dict[Content, TensorInfo]:
    """The parts of a weight that are there, of the right dtype and shape."""
    found: dict[Content, TensorInfo] = {}
    for part in native_parts(module, weight, rows, columns):
        info = tensors.get(part.name)
        if info is None:
            complain("missing-part", part.name, f"is not there; {weight.quantizer!r} makes it")
        elif (info.dtype, info.shape) != (part.dtype, part.shape):
            complain(
                "wrong-part",
                part.name,
                f"is {info.dtype} {list(info.shape)}, not {part.dtype} {list(part.shape)}",
            )
        else:
            found[part.content] = info
    return found


def _place(entry: Mapping[str, Any]) -> tuple[str, int]:
    return entry["tensor"], entry["first_row"]
