"""How engines read a quantization_config: which scheme each module gets from its name.

Facts: `docs/checkpoints.md`, for the releases named there. Engines differ in what a string
matches, in the order in which names, fused layers and classes are tried, and in who wins a tie.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from qrole.auditing.declaration import DeclarationSubject, encoding_of_arguments
from qrole.auditing.entries import Entries, Entry, class_target
from qrole.auditing.options import Engine
from qrole.checkpoint.fused import absent_siblings, fused_groups

__all__ = ["Resolution", "excluding", "resolve"]


@dataclass(frozen=True)
class Resolution:
    """What an engine makes of one module.

    Attributes:
        encoding: The scheme's encoding; `""` for not quantized.
        error: What the engine raises instead; `""` where it does not.
        by: The entry that decided, for messages.
    """

    encoding: str = ""
    error: str = ""
    by: str = ""

    @property
    def label(self) -> str:
        """For messages."""
        return self.error or self.encoding or "not quantized"


#: Names that engines give to layers that they fuse, by the shards' names.
_FUSED_NAMES = {
    ("q_proj", "k_proj", "v_proj"): "qkv_proj",
    ("query", "key", "value"): "qkv_proj",
    ("gate_proj", "up_proj"): "gate_up_proj",
    ("w1", "w3"): "w13",
}

#: Class of a linear layer in each engine; a class target matches a part of it.
_LINEAR_CLASSES = {
    Engine.VLLM: "QKVParallelLinear",
    Engine.SGLANG: "QKVParallelLinear",
    Engine.TENSORRT_LLM: "Linear",
    Engine.TRANSFORMERS: "Linear",
}


def resolve(engine: Engine, subject: DeclarationSubject) -> dict[str, Resolution]:
    """The engine's reading of every module with a weight matrix, by module.

    Empty where the engine has no reader for the method.
    """
    if subject.method == "compressed-tensors":
        reader: Callable[[str], Resolution] = _CompressedTensors(engine, subject).resolve
    elif subject.method == "modelopt" and engine is not Engine.TRANSFORMERS:
        reader = _ModelOpt(engine, subject).resolve
    elif subject.method == "fp8":
        reader = _Fp8(subject).resolve
    else:
        return {}
    return {module: reader(module) for module in _linear_modules(subject)}


def _linear_modules(subject: DeclarationSubject) -> Iterator[str]:
    """Modules that engines build as linear layers; embeddings are none, unless they hold codes."""
    for module, stored in subject.stored.items():
        if stored.encoding or not re.search(r"embed|wte|wpe|norm", module.rpartition(".")[2]):
            yield module


class _CompressedTensors:
    def __init__(self, engine: Engine, subject: DeclarationSubject) -> None:
        self.engine = engine
        self.subject = subject
        self.fused = fused_groups(subject.stored)
        self.absent = absent_siblings(self.fused)
        targets = list(subject.targets)
        if engine in (Engine.TRANSFORMERS, Engine.TENSORRT_LLM):
            targets.sort(key=lambda t: (t.text.startswith("re:"), t.text))
        self.targets = Entries(targets)
        self.by_class = next((t for t in targets if self._is_class(t.text)), None)
        self.everything_ignored = any(self._is_class(text) for text in subject.excluded)

    def resolve(self, module: str) -> Resolution:
        joins = self.engine is not Engine.TRANSFORMERS
        members = self.fused.get(module, (module,)) if joins else (module,)
        shards = (*members, *self.absent.get(members, ()))
        ignored = {shard: self._ignored(shard) for shard in shards}
        if any(ignored.values()):
            if all(ignored.values()) or len(members) == 1:
                return Resolution(by="ignore")
            left = ", ".join(s.rpartition(".")[2] for s, out in ignored.items() if not out)
            return Resolution(error=f"refuses: of its fused layer, {left} is not ignored")
        found = self._group(members)
        if found is None:
            if self.engine is Engine.SGLANG:
                return Resolution(error="refuses: neither a target nor ignored")
            return Resolution(by="no target")
        return self._scheme(found.owner, found.text)

    def _scheme(self, name: str, entry: str) -> Resolution:
        group = self.subject.groups[name]
        weights = group.get("weights")
        encoding = encoding_of_arguments(weights if isinstance(weights, dict) else {})
        needs = self.engine in (Engine.VLLM, Engine.SGLANG)
        mixed = self.subject.quantization.get("format") == "mixed-precision"
        if needs and mixed and not group.get("format"):
            return Resolution(error=f"finds no scheme: {name} has no format", by=entry)
        return Resolution(encoding, by=f"{name}: {entry}")

    def _ignored(self, module: str) -> bool:
        if self.everything_ignored or self.subject.exclusions.first(module) is not None:
            return True
        if self.engine is not Engine.SGLANG:
            return False
        parts = module.split(".")
        suffixes = (".".join(parts[i:]) for i in range(1, len(parts)))
        return any(suffix in self.subject.excluded for suffix in suffixes)

    def _is_class(self, entry: str) -> bool:
        name = _LINEAR_CLASSES[self.engine]
        if not class_target(entry) or self.engine is Engine.TRANSFORMERS:
            return entry == name
        return entry.lower() in name.lower()

    def _group(self, members: tuple[str, ...]) -> Entry | None:
        if len(members) == 1:
            return self.targets.first(members[0]) or self.by_class
        whole = self.targets.first(_fused_name(members))
        shards = next((found for m in members if (found := self.targets.first(m))), None)
        if self.engine is Engine.SGLANG:
            return whole or self.by_class or shards
        return whole or shards or self.by_class


def _fused_name(members: tuple[str, ...]) -> str:
    parent = members[0].rpartition(".")[0]
    short = [member.rpartition(".")[2] for member in members]
    name = next((n for parts, n in _FUSED_NAMES.items() if set(short) <= set(parts)), "")
    return f"{parent}.{name}" if name else ""


_ALGORITHMS = {
    "FP8": "fp8_tensor",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8_channel",
    "FP8_PB_WO": "fp8_block",
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "MXFP8": "mxfp8",
}


class _ModelOpt:
    def __init__(self, engine: Engine, subject: DeclarationSubject) -> None:
        self.engine = engine
        self.subject = subject
        self.algorithm = str(subject.quantization.get("quant_algo") or "").upper()
        layers = subject.quantization.get("quantized_layers")
        self.layers = layers if isinstance(layers, dict) else {}
        self.fused = fused_groups(subject.stored)

    def resolve(self, module: str) -> Resolution:
        entry = excluding(self.engine, self.subject, module)
        if entry is not None:
            members = self.fused.get(module, ())
            left = [m for m in members if excluding(self.engine, self.subject, m) is None]
            if left and self.engine is not Engine.TENSORRT_LLM:
                short = ", ".join(m.rpartition(".")[2] for m in left)
                return Resolution(error=f"refuses: of its fused layer, {short} is not excluded")
            return Resolution(by=f"exclude: {entry}")
        if self.algorithm != "MIXED_PRECISION":
            return self._named(self.algorithm, "quant_algo")
        declared = self.layers.get(module)
        if not isinstance(declared, dict):
            return Resolution(by="not in quantized_layers")
        return self._named(str(declared.get("quant_algo") or "").upper(), "quantized_layers")

    def _named(self, algorithm: str, by: str) -> Resolution:
        if algorithm not in _ALGORITHMS:
            return Resolution(error=f"does not know quant_algo {algorithm or None!r}", by=by)
        return Resolution(_ALGORITHMS[algorithm], by=f"{by}: {algorithm}")


def excluding(engine: Engine, subject: DeclarationSubject, module: str) -> str | None:
    """The entry of ModelOpt's exclude list that leaves a module out; vLLM takes parts of names."""
    found = subject.exclusions.first(module)
    if found is not None:
        return found.text
    if engine is not Engine.VLLM:
        return None
    return next((e for e in subject.excluded if "*" not in e and e in module), None)


class _Fp8:
    def __init__(self, subject: DeclarationSubject) -> None:
        self.subject = subject
        block = subject.quantization.get("weight_block_size")
        self.encoding = "fp8_block" if block else "fp8_tensor"

    def resolve(self, module: str) -> Resolution:
        if module in self.subject.excluded:
            return Resolution(by="modules_to_not_convert")
        if module.rpartition(".")[2] == "lm_head":
            return Resolution(by="the head is never converted")
        return Resolution(self.encoding, by="quant_method fp8")
