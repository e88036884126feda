"""QR5xx: a quantization_config that readers refuse, or that fits no module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qrole.auditing.declaration import DeclarationSubject, encoding_of_arguments
from qrole.auditing.entries import Entries, Entry, class_target
from qrole.auditing.registry import Hit, Severity, check
from qrole.checkpoint.fused import fused_groups

_GROUP_KEYS = {"targets", "weights", "input_activations", "output_activations", "format"}
_ARGUMENT_KEYS = {
    "num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "dynamic",
    "scale_dtype", "zp_dtype", "observer", "observer_kwargs", "actorder",
}  # fmt: skip
_FORMATS = {
    "fp8_tensor": "float-quantized",
    "fp8_channel": "float-quantized",
    "fp8_block": "float-quantized",
    "nvfp4": "nvfp4-pack-quantized",
    "mxfp8": "mxfp8-quantized",
    "mxfp4": "mxfp4-pack-quantized",
}


def _config_hit(subject: DeclarationSubject, message: str, to_do: str, where: str = "") -> Hit:
    file = subject.config_file
    return Hit(where or "quantization_config", message, to_do, "", file, 1)


@check("QR520", Severity.ERROR)
def config_keys(subject: DeclarationSubject) -> Iterator[Hit]:
    """A key of quantization_config is missing, unknown, or has a value that readers refuse.

    Without `quant_method` transformers raises. Without `quantization_status` it takes the layers as
    not compressed yet: every packed tensor is missing, the logits are NaN, and nothing raises. In a
    mixed-precision config vLLM and SGLang need the `format` of every group. The objects inside a
    group allow no unknown key: one more, and every reader raises.

    Write only the keys that readers know; put others at the top of quantization_config.
    """
    config = subject.quantization
    if not subject.method:
        yield _config_hit(subject, "quant_method is missing", "add quant_method")
    if subject.method == "modelopt" and not config.get("quant_algo"):
        yield _config_hit(subject, "quant_algo is missing", "add quant_algo")
    yield from _legacy_keys(subject)
    if subject.method != "compressed-tensors":
        return
    if config.get("quantization_status") != "compressed":
        yield _config_hit(
            subject,
            f"quantization_status is {config.get('quantization_status')!r}",
            'write "quantization_status": "compressed"',
        )
    for name, group in subject.groups.items():
        yield from _group_keys(subject, name, group)


def _group_keys(subject: DeclarationSubject, name: str, group: dict[str, Any]) -> Iterator[Hit]:
    unknown = sorted(set(group) - _GROUP_KEYS)
    for part in ("weights", "input_activations", "output_activations"):
        arguments = group.get(part)
        if isinstance(arguments, dict):
            unknown += [f"{part}.{key}" for key in sorted(set(arguments) - _ARGUMENT_KEYS)]
    for key in unknown:
        yield _config_hit(
            subject,
            f"{key} is a key that readers refuse",
            "remove the key",
            f"config_groups.{name}",
        )
    if not group.get("targets"):
        yield _config_hit(
            subject, "targets are missing", "name the modules", f"config_groups.{name}"
        )
    weights = group.get("weights")
    encoding = encoding_of_arguments(weights) if isinstance(weights, dict) else "unknown"
    mixed = subject.quantization.get("format") == "mixed-precision"
    given = group.get("format") or (None if mixed else subject.quantization.get("format"))
    wanted = _FORMATS.get(encoding)
    if wanted is None:
        yield _config_hit(
            subject, "its weights are of no known scheme", "see the schemes that engines know",
            f"config_groups.{name}",
        )  # fmt: skip
    elif given != wanted:
        yield _config_hit(
            subject,
            f"format is {given!r}, its weights are {wanted!r}",
            f"write {wanted!r}",
            f"config_groups.{name}",
        )


def _legacy_keys(subject: DeclarationSubject) -> Iterator[Hit]:
    """VLLM reads these keys of hf_quant_config.json whether or not they hold anything."""
    if subject.legacy is None:
        return
    nested = subject.legacy.get("quantization")
    nested = nested if isinstance(nested, dict) else {}
    needed = ["quant_algo", "kv_cache_quant_algo", "exclude_modules"]
    if "NVFP4" in str(nested.get("quant_algo")):
        needed.append("group_size")
    for key in needed:
        if key not in nested:
            file = str(subject.directory / "hf_quant_config.json")
            yield Hit(
                "hf_quant_config.json", f"quantization.{key} is missing", "add it, empty or null",
                "", file, 1,
            )  # fmt: skip
    flat = subject.config.get("quantization_config")
    if isinstance(flat, dict) and flat.get("quant_algo") != nested.get("quant_algo"):
        yield _config_hit(
            subject,
            f"quant_algo is {flat.get('quant_algo')!r}, in hf_quant_config.json "
            f"{nested.get('quant_algo')!r}",
            "write both from one source; TensorRT-LLM believes the file",
        )


@check("QR521", Severity.WARNING)
def entry_matches_nothing(subject: DeclarationSubject) -> Iterator[Hit]:
    """A target or an ignore entry matches no module of the checkpoint.

    A name that the model no longer has, a glob where readers take names or regular expressions
    (`*lm_head*`), or the name of a wrapper that the checkpoint does not know. What it was meant for
    is treated as if it were not listed.

    Correct the entry, or remove it.
    """
    modules = _modules(subject)
    for kind, entries in _lists(subject):
        for entry in entries.idle(modules):
            if class_target(entry.text) or _known_absent(entry.text, subject):
                continue
            of = f" of {entry.owner}" if entry.owner else ""
            yield _config_hit(
                subject,
                f"{kind}{of} {entry.text!r} matches no module",
                "correct or remove the entry",
            )


def _modules(subject: DeclarationSubject) -> list[str]:
    """Every module name that tensors have, their parents included."""
    found: dict[str, None] = {}
    for name in subject.tensors:
        path = name.rpartition(".")[0]
        while path and path not in found:
            found[path] = None
            path = path.rpartition(".")[0]
    return list(found)


def _lists(subject: DeclarationSubject) -> Iterator[tuple[str, Entries]]:
    yield "target", subject.targets
    layers = subject.quantization.get("quantized_layers")
    if isinstance(layers, dict):
        yield "quantized layer", Entries(Entry("", name) for name in layers)
    yield "ignored", subject.exclusions


def _known_absent(entry: str, subject: DeclarationSubject) -> bool:
    """A head without a tensor and a sibling that engines look up are listed on purpose."""
    if entry.rpartition(".")[2] in ("lm_head", "re:.*lm_head"):
        return True
    parent, _, last = entry.rpartition(".")
    siblings = [m for m in subject.stored if m.rpartition(".")[0] == parent]
    return bool(fused_groups([*siblings, entry]).get(entry)) and last != ""


@check("QR522", Severity.ERROR)
def quantized_and_excluded(subject: DeclarationSubject) -> Iterator[Hit]:
    """A module's tensors are quantized, and the config excludes it.

    Engines build it in high precision and then find tensors that they have no parameter for, or
    read the codes as values. `re:.*gate`, meant for a router, also excludes `gate_proj`; a part of
    a name is enough for vLLM's reading of ModelOpt's list.

    Write config and tensors from one source; end regular expressions in `$`.
    """
    for module, stored in subject.stored.items():
        entry = subject.exclusions.first(module) if stored.encoding else None
        if entry is not None:
            yield Hit(
                module,
                f"its tensors are {stored.label}, and {entry.text!r} excludes it",
                "write config and tensors from one source; end regular expressions in $",
                module,
                subject.config_file,
                1,
            )


@check("QR523", Severity.ERROR)
def overlapping_targets(subject: DeclarationSubject) -> Iterator[Hit]:
    """Targets of two groups match one module.

    Engines break the tie differently: transformers and TensorRT-LLM sort the targets, vLLM and
    SGLang take the order of the file, and SGLang tries a class target before it looks at the parts
    of a fused layer. The checkpoint is then read in more than one way.

    Write disjoint targets, and no class target beside a second group.
    """
    if len(subject.groups) < 2:
        return
    classes = {target.owner: target.text for target in subject.targets if class_target(target.text)}
    for module, stored in subject.stored.items():
        found = classes | {target.owner: target.text for target in subject.targets.matching(module)}
        if len(found) > 1 and stored.encoding:
            shown = ", ".join(f"{entry!r} of {name}" for name, entry in found.items())
            yield Hit(
                module,
                f"is matched by {shown}",
                "write disjoint targets, and no class target beside a second group",
                module,
                subject.config_file,
                1,
            )
