"""A written checkpoint as its files declare it: config, tensor names, dtypes and shapes."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from qrole.auditing.entries import Entries, Entry
from qrole.auditing.options import Engine
from qrole.checkpoint.headers import TensorInfo, read_headers
from qrole.errors import CheckpointError, UsageError
from qrole.loading import read_config

if TYPE_CHECKING:
    from qrole.auditing.resolution import Resolution

__all__ = ["DeclarationSubject", "Stored", "encoding_of_arguments", "read_declaration"]

_HIGH = ("F64", "F32", "F16", "BF16")
_SCALARS = ("F32", "F64", "BF16")


@dataclass(frozen=True)
class Stored:
    """How a module's weight is stored.

    Attributes:
        module: The module.
        encoding: `fp8_tensor`, `fp8_channel`, `fp8_block`, `mxfp8`, `mxfp4`, `nvfp4`, `unknown` for
            codes whose scales do not fit any, or `""` for high precision.
        parts: Its tensors by the last part of their names.
    """

    module: str
    encoding: str
    parts: Mapping[str, TensorInfo]

    @property
    def label(self) -> str:
        """For messages."""
        return self.encoding or "high precision"


@dataclass(frozen=True)
class DeclarationSubject:
    """A directory with a `quantization_config`.

    Attributes:
        directory: The directory.
        config: config.json.
        legacy: hf_quant_config.json; None where there is none.
        tensors: Headers, by tensor name.
        engines: Engines whose reading is of interest.
        asked: The user named the engines.
    """

    directory: Path
    config: dict[str, Any]
    legacy: dict[str, Any] | None
    tensors: Mapping[str, TensorInfo]
    engines: tuple[Engine, ...]
    asked: bool

    @property
    def config_file(self) -> str:
        """Path of config.json, for findings."""
        return str(self.directory / "config.json")

    @property
    def quantization(self) -> dict[str, Any]:
        """`quantization_config`, or its counterpart in hf_quant_config.json."""
        declared = self.config.get("quantization_config")
        if isinstance(declared, dict):
            return declared
        nested = (self.legacy or {}).get("quantization", {})
        flat = {
            "quant_method": "modelopt",
            "quant_algo": nested.get("quant_algo"),
            "quantized_layers": nested.get("quantized_layers", {}),
            "ignore": nested.get("exclude_modules", []),
        }
        return flat if self.legacy is not None else {}

    @property
    def method(self) -> str:
        """`quant_method`, `""` where it is missing."""
        return str(self.quantization.get("quant_method") or "")

    @cached_property
    def groups(self) -> dict[str, dict[str, Any]]:
        """`config_groups` of compressed-tensors, in file order."""
        groups = self.quantization.get("config_groups")
        if not isinstance(groups, dict):
            return {}
        return {name: group for name, group in groups.items() if isinstance(group, dict)}

    @cached_property
    def excluded(self) -> tuple[str, ...]:
        """Entries of the list of modules that are not quantized, whatever it is called."""
        keys = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")
        found = [e for key in keys for e in self.quantization.get(key) or () if isinstance(e, str)]
        return tuple(dict.fromkeys(found))

    @cached_property
    def exclusions(self) -> Entries:
        """The same, for looking modules up: globs in ModelOpt's list, names elsewhere."""
        globs = self.method == "modelopt"
        return Entries((Entry("", text) for text in self.excluded), globs=globs)

    @cached_property
    def targets(self) -> Entries:
        """The targets of all groups, in file order, owned by their groups."""
        return Entries(
            Entry(name, text)
            for name, group in self.groups.items()
            for text in group.get("targets") or ()
            if isinstance(text, str)
        )

    @cached_property
    def readings(self) -> dict[Engine, dict[str, Resolution]]:
        """What every engine of interest makes of every module."""
        from qrole.auditing.resolution import resolve

        return {engine: resolve(engine, self) for engine in self.engines}

    @cached_property
    def stored(self) -> dict[str, Stored]:
        """Every module with a weight matrix, by module."""
        parts: dict[str, dict[str, TensorInfo]] = {}
        for name, info in self.tensors.items():
            module, _, last = name.rpartition(".")
            parts.setdefault(module, {})[last] = info
        return {
            module: Stored(module, _encoding(found), found)
            for module, found in parts.items()
            if _is_matrix(found)
        }

    def scalars(self, part: str) -> Iterator[tuple[str, float]]:
        """Module and value of every part of that name with one element."""
        with contextlib.ExitStack() as files:
            opened: dict[Path, BinaryIO] = {}
            for module, stored in self.stored.items():
                info = stored.parts.get(part)
                if info is None or info.numel != 1 or info.dtype not in _SCALARS:
                    continue
                if info.file not in opened:
                    opened[info.file] = files.enter_context(info.file.open("rb"))
                yield module, _scalar(info, opened[info.file])


_DEFAULT_ENGINES = {
    "compressed-tensors": (Engine.VLLM, Engine.SGLANG, Engine.TRANSFORMERS),
    "modelopt": (Engine.VLLM, Engine.SGLANG, Engine.TENSORRT_LLM),
    "fp8": tuple(Engine),
}


def read_declaration(directory: Path, engines: tuple[Engine, ...] = ()) -> DeclarationSubject:
    """What a directory declares; no weights are read.

    Args:
        directory: Holds config.json and safetensors.
        engines: Engines of interest; default: those that the layout is meant for.

    Raises:
        UsageError: The directory declares no quantization.
        CheckpointError: A file is missing or malformed.
    """
    config = read_config(directory) or {}
    legacy = _read_legacy(directory / "hf_quant_config.json")
    if not isinstance(config.get("quantization_config"), dict) and legacy is None:
        raise UsageError(
            f"{directory} declares no quantization",
            expected="a config.json with quantization_config",
            hint="name the directory of a quantized checkpoint, or a factory, to look at its plan",
        )
    subject = DeclarationSubject(
        directory, config, legacy, read_headers(directory), engines, bool(engines)
    )
    if engines:
        return subject
    defaults = _DEFAULT_ENGINES.get(subject.method, ())
    return DeclarationSubject(directory, config, legacy, subject.tensors, defaults, asked=False)


def _read_legacy(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}", expected="a JSON object", hint="fetch it again"
        ) from error
    return content if isinstance(content, dict) else None


def _scalar(info: TensorInfo, file: BinaryIO) -> float:
    """The value of a tensor with one element."""
    file.seek(info.start)
    raw = file.read(info.nbytes)
    if info.dtype == "BF16":
        raw = b"\0\0" + raw
    return float(struct.unpack("<d" if len(raw) == 8 else "<f", raw)[0])


def _is_matrix(parts: Mapping[str, TensorInfo]) -> bool:
    codes = parts.get("weight_packed") or parts.get("weight")
    return codes is not None and len(codes.shape) == 2


def _encoding(parts: Mapping[str, TensorInfo]) -> str:
    """The encoding of a weight, from the dtypes and shapes of its codes and scales."""
    codes = parts.get("weight_packed") or parts["weight"]
    scale = parts.get("weight_scale") or parts.get("weight_scale_inv")
    if codes.dtype in _HIGH:
        return ""
    if codes.dtype == "U8":
        kinds = {"F8_E4M3": "nvfp4", "U8": "mxfp4", "F8_E8M0": "mxfp4"}
        return kinds.get(scale.dtype, "unknown") if scale is not None else "unknown"
    if codes.dtype != "F8_E4M3" or scale is None:
        return "unknown"
    if scale.dtype in ("U8", "F8_E8M0"):
        return "mxfp8"
    if scale.numel == 1 and len(scale.shape) < 2:
        return "fp8_tensor"
    rows, columns = codes.shape
    if scale.numel == rows and scale.shape[0] == rows:
        return "fp8_channel"
    blocks = -(-rows // 128) * -(-columns // 128)
    return "fp8_block" if scale.numel == blocks else "unknown"


def encoding_of_arguments(weights: Mapping[str, Any]) -> str:
    """The encoding that the `weights` arguments of a compressed-tensors group describe."""
    bits, strategy = weights.get("num_bits"), weights.get("strategy")
    if weights.get("type") != "float":
        return "unknown"
    if bits == 4:
        return {"tensor_group": "nvfp4", "group": "mxfp4"}.get(str(strategy), "unknown")
    kinds = {
        "tensor": "fp8_tensor",
        "channel": "fp8_channel",
        "block": "fp8_block",
        "group": "mxfp8",
    }
    return kinds.get(str(strategy), "unknown") if bits == 8 else "unknown"
