"""A written checkpoint as the model's tensors: every stored tensor has its place, or it is refused.

What a config declares says how layers are to be read; the manifest, where there is one, under which
name the model has their weights and which quantizer made them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrole.checkpoint.fused import Fusion, fused_groups
from qrole.checkpoint.headers import TensorInfo, read_headers
from qrole.checkpoint.layouts import LAYOUTS, Content
from qrole.checkpoint.manifest import MANIFEST, read_manifest
from qrole.checkpoint.schemes import WeightFormat
from qrole.checkpoint.stored_tensor import quantized_tensor
from qrole.checkpoint.verification.declared import weight_modules
from qrole.checkpoint.verification.decoding import StoredLayer
from qrole.checkpoint.verification.reading import Reader
from qrole.checkpoint.verification.report import Problem
from qrole.checkpoint.verification.structure import check_modules, stored_layers
from qrole.checkpoint.verify import read_declared
from qrole.errors import CheckpointError
from qrole.loading import read_config

if TYPE_CHECKING:
    import torch

    from qrole.quantizers import QuantizedTensor

__all__ = ["StoredModel", "StoredWeight", "open_stored"]

_SHOWN = 3
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class StoredWeight:
    """One quantized layer's weight.

    Attributes:
        layer: Its stored parts.
        fmt: How they were encoded.
        amax: Amax that its scale was made from; None where no manifest tells.
        tensor: The model's tensor that it is, or is a part of.
        first_row: Its first row there, that tensor seen as a matrix.
    """

    layer: StoredLayer
    fmt: WeightFormat
    amax: float | None
    tensor: str
    first_row: int


@dataclass(frozen=True)
class StoredModel:
    """A checkpoint whose tensors are all accounted for.

    Attributes:
        directory: Where it is.
        config: Its config.json without the quantization.
        weights: Quantized weights by module, in the order of the files.
        plain: Tensors that are stored as they are.
        inputs: Numbers that static inputs are scaled with, by their stored names.
        tied: Names that share another tensor and are not stored, with that tensor.
    """

    directory: Path
    config: dict[str, Any]
    weights: dict[str, StoredWeight]
    plain: dict[str, TensorInfo]
    inputs: dict[str, TensorInfo]
    tied: dict[str, str]
    reader: Reader = field(default_factory=Reader, repr=False)

    @property
    def dtype(self) -> torch.dtype:
        """What decoded weights are made in: the config's dtype, else that of most other elements.

        fp32 where nothing else is stored.
        """
        import torch

        named = self.config.get("dtype") or self.config.get("torch_dtype")
        found = getattr(torch, str(named), None)
        if isinstance(found, torch.dtype):
            return found
        sizes: dict[str, int] = defaultdict(int)
        for info in self.plain.values():
            if info.dtype in _FLOATS:
                sizes[info.dtype] += info.numel
        most = max(sizes, key=lambda name: sizes[name], default="F32")
        named_dtype: torch.dtype = getattr(torch, _DTYPES[most])
        return named_dtype

    def quantized(self, module: str, dtype: torch.dtype) -> QuantizedTensor:
        """The weight of a module as it is stored."""
        weight = self.weights[module]
        return quantized_tensor(weight.layer, weight.fmt, weight.amax, self.reader, dtype)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the model's tensors by name, tied names included."""
        shapes = {name: info.shape for name, info in self.plain.items()}
        for tensor, parts in self._parts().items():
            rows, columns = parts[0].layer.rows, parts[0].layer.columns
            shapes[tensor] = (rows, columns) if len(parts) == 1 else (len(parts), rows, columns)
        return shapes | {a: shapes[twin] for a, twin in self.tied.items() if twin in shapes}

    def decoded(
        self, dtype: torch.dtype | None, own: Mapping[str, torch.dtype] | None = None
    ) -> dict[str, torch.Tensor]:
        """The model's tensors in high precision, by name, tied names included.

        Args:
            dtype: Of everything that is floating-point; None leaves what is stored as it is, and
                decodes into `self.dtype`.
            own: A dtype for single tensors, by name.
        """
        import torch

        dtypes = own or {}
        state: dict[str, torch.Tensor] = {}
        for name, info in self.plain.items():
            value = self.tensor(info)
            wanted = dtypes.get(name, dtype)
            keep = wanted is None or not value.is_floating_point()
            state[name] = value if keep else value.to(wanted)
        for tensor, parts in self._parts().items():
            wanted = dtypes.get(tensor, dtype) or self.dtype
            made = [self.quantized(p.layer.module, wanted).dequantize() for p in parts]
            state[tensor] = made[0] if len(made) == 1 else torch.stack(made)
        return state | {a: state[twin] for a, twin in self.tied.items() if twin in state}

    def tensor(self, info: TensorInfo) -> torch.Tensor:
        """A tensor that is stored as it is, mapped from its file."""
        import torch

        dtype: torch.dtype = getattr(torch, _DTYPES[info.dtype])
        raw = self.reader.raw(info)
        if info.start % dtype.itemsize:
            raw = raw.clone()
        return raw.view(dtype).reshape(info.shape)

    def _parts(self) -> dict[str, list[StoredWeight]]:
        """Quantized weights by the model's tensor: experts that it holds in one come together."""
        parts: dict[str, list[StoredWeight]] = defaultdict(list)
        for weight in self.weights.values():
            parts[weight.tensor].append(weight)
        for name, found in parts.items():
            found.sort(key=lambda weight: weight.first_row)
            rows = found[0].layer.rows
            if [w.first_row for w in found] != [i * rows for i in range(len(found))]:
                raise CheckpointError(
                    f"{MANIFEST} gives the layers of {name} the first rows "
                    f"{[w.first_row for w in found]}",
                    expected=f"a layer at every {rows} rows",
                    hint="run `qrole verify` on the directory, or write it again",
                )
        return parts


def open_stored(directory: Path) -> StoredModel:
    """Opens a checkpoint that `apply` has written; values are read when they are asked for.

    Raises:
        CheckpointError: A file is missing or malformed, or tensors and declaration disagree.
        NothingMatchedError: It declares no quantization.
        UsageError: Its layout is not known.
    """
    if not directory.is_dir():
        raise CheckpointError(
            f"{directory} is no directory",
            expected="the directory of a checkpoint that `qrole apply` has written",
            hint="check the path",
        )
    tensors = read_headers(directory)
    config = read_config(directory) or {}
    declared = read_declared(directory, config, tensors)
    problems = list(declared.problems)

    def complain(kind: str, where: str, message: str) -> None:
        problems.append(Problem(kind, where, message))

    layout = LAYOUTS[declared.layout]
    layers = stored_layers(declared, layout, tensors, complain)
    modules = weight_modules(tensors)
    check_modules(declared, layout, tensors, modules, layers, complain)
    parts = {info.name for layer in layers.values() for info in layer.parts.values()}
    for name, info in tensors.items():
        if name not in parts and info.dtype not in _DTYPES:
            complain("unreadable", name, f"is {info.dtype}, which torch does not have")
    record = read_manifest(directory) if (directory / MANIFEST).is_file() else None
    for name in record.get("kept", ()) if record else ():
        if name not in tensors:
            complain("lost-tensor", name, f"is not there; {MANIFEST} lists it")
    _refuse(directory, problems)
    weights, tied = _unrecorded(layers), {}
    if record is not None:
        try:
            weights, tied = _recorded(layers, record), dict(record["dropped"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{directory / MANIFEST} is malformed: {type(error).__name__} {error}",
                expected="the manifest that this version of qrole writes",
                hint="write the checkpoint again with this version",
            ) from error
    return StoredModel(
        directory=directory,
        config={key: value for key, value in config.items() if key != "quantization_config"},
        weights=weights,
        plain={name: info for name, info in tensors.items() if name not in parts},
        inputs={
            layer.parts[content].name: layer.parts[content]
            for layer in layers.values()
            for content in (Content.INPUT_MULTIPLIER, Content.INPUT_DIVISOR)
            if content in layer.parts
        },
        tied=tied,
    )


def _refuse(directory: Path, problems: list[Problem]) -> None:
    if problems:
        more = f", and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise CheckpointError(
            f"{directory} is not what its config.json declares: "
            + "; ".join(str(problem) for problem in problems[:_SHOWN])
            + more,
            expected="every stored tensor declared, and every declared part stored",
            hint="`qrole verify` lists everything; write the checkpoint again",
        )


def _unrecorded(layers: Mapping[str, StoredLayer]) -> dict[str, StoredWeight]:
    """What the tensors alone tell: names as they are stored, options of no quantizer."""
    return {
        module: StoredWeight(layer, WeightFormat(layer.encoding.name), None, f"{module}.weight", 0)
        for module, layer in layers.items()
    }


def _recorded(
    layers: Mapping[str, StoredLayer], record: Mapping[str, Any]
) -> dict[str, StoredWeight]:
    """What the manifest adds: the model's own names, the quantizer's options, exact amaxes."""
    entries = record["layers"]
    strangers = layers.keys() ^ entries.keys()
    if strangers:
        raise CheckpointError(
            f"{MANIFEST} and config.json differ in {len(strangers)} layers, {min(strangers)} first",
            expected="the manifest of this checkpoint",
            hint="write the checkpoint again, or remove the manifest that is not its own",
        )
    fusions = [Fusion(tuple(names)) for names in record["options"]["fusions"]]
    groups = fused_groups(layers, fusions)
    weights = {}
    for module, layer in layers.items():
        entry = entries[module]
        amax = None
        if layer.encoding.shared:
            amax = max(entries[m]["amax"] for m in groups.get(module, (module,)))
        fmt = WeightFormat(**entry["format"])
        weights[module] = StoredWeight(layer, fmt, amax, entry["tensor"], entry["first_row"])
    return weights
