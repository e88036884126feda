"""QR5xx: a written checkpoint whose config and tensors do not fit each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from qrole.auditing.declaration import DeclarationSubject, Stored, encoding_of_arguments
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
_TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


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


@check("QR524", Severity.ERROR)
def incomplete_tensors(subject: DeclarationSubject) -> Iterator[Hit]:
    """A quantized weight lacks a scale, or a scale has a name, shape or dtype that is not read.

    A missing scale is not an error to most loaders: transformers loads NaN, vLLM loads zero and
    divides by it. MX scales stored as float8_e8m0fnu are read as other values; scalars of shape []
    and rows of shape [out] are refused in compressed-tensors.

    Write the tensors that the scheme has, as it names them.
    """
    static = _static_inputs(subject)
    for module, stored in subject.stored.items():
        if not stored.encoding:
            continue
        for problem in _problems(subject.method, stored, module in static):
            yield Hit(module, problem, "write the tensors that the scheme has", module)


def _static_inputs(subject: DeclarationSubject) -> frozenset[str]:
    """Modules whose group declares a stored scale of the input."""
    static = {
        name
        for name, group in subject.groups.items()
        if isinstance(inputs := group.get("input_activations"), dict)
        and inputs.get("dynamic") in (False, "local")
    }
    by_class = next((t for t in subject.targets if class_target(t.text)), None)
    found = set()
    for module in subject.stored:
        target = subject.targets.first(module) or by_class
        if target is not None and target.owner in static:
            found.add(module)
    return frozenset(found)


def _problems(method: str, stored: Stored, static: bool) -> Iterator[str]:
    parts = stored.parts
    scale = parts.get("weight_scale") or parts.get("weight_scale_inv")
    if scale is None:
        yield "weight_scale is missing"
        return
    if scale.dtype == "F8_E8M0":
        yield "weight_scale is F8_E8M0; readers take uint8"
    if stored.encoding == "unknown":
        yield f"weight_scale {scale.dtype} {list(scale.shape)} fits no scheme of its codes"
    if method == "compressed-tensors":
        yield from _ct_problems(stored, static)
    elif method == "modelopt" and stored.encoding == "nvfp4" and "weight_scale_2" not in parts:
        yield "weight_scale_2 is missing"
    elif method == "fp8" and "weight_scale_inv" not in parts:
        yield "weight_scale_inv is missing"


def _ct_problems(stored: Stored, static: bool) -> Iterator[str]:
    parts = stored.parts
    if "weight_scale" not in parts:
        yield "the scale is called weight_scale_inv; compressed-tensors reads weight_scale"
        return
    scale = parts["weight_scale"]
    if stored.encoding == "nvfp4":
        if "weight_scale_2" in parts:
            yield "it has ModelOpt's weight_scale_2; compressed-tensors reads weight_global_scale"
        elif "weight_global_scale" not in parts:
            yield "weight_global_scale is missing"
        if static and "input_global_scale" not in parts:
            yield "input_global_scale is missing, and its group declares one"
    if stored.encoding == "fp8_tensor":
        if scale.shape != (1,):
            yield f"weight_scale has shape {list(scale.shape)}; readers take [1]"
        if static and "input_scale" not in parts:
            yield "input_scale is missing, and its group declares one"
    if stored.encoding == "fp8_channel" and len(scale.shape) != 2:
        yield f"weight_scale has shape {list(scale.shape)}; readers take [out, 1]"


@check("QR525", Severity.ERROR)
def shared_scales_differ(subject: DeclarationSubject) -> Iterator[Hit]:
    """Layers that engines fuse have different global scales.

    A fused NVFP4 layer has one global scale. vLLM and SGLang keep one of the shards' and leave the
    block scales as they are, so that the other shards are scaled wrongly; a warning is all.

    Quantize the shards with one amax: the largest of theirs.
    """
    for part in ("weight_global_scale", "weight_scale_2", "input_global_scale"):
        values = dict(subject.scalars(part))
        groups = fused_groups(values)
        for members in dict.fromkeys(groups[module] for module in values if module in groups):
            found = [values[m] for m in members]
            if len(set(found)) > 1:
                ratio = max(map(abs, found)) / max(min(map(abs, found)), 1e-45)
                names = ", ".join(m.rpartition(".")[2] for m in members)
                yield Hit(
                    members[0],
                    f"{part} differs between {names} (by a factor of up to {ratio:.3g})",
                    "quantize fused layers with one amax",
                    members[0],
                )


@check("QR526", Severity.ERROR)
def unusable_scale(subject: DeclarationSubject) -> Iterator[Hit]:
    """A scale is zero, negative, infinite or NaN.

    The amax of an expert that calibration never reached is zero, and its scale 1/0 or 0. Prompts
    that reach the expert give NaN.

    Write the largest amax of the layer for experts that were not reached, and 1 for a zero tensor.
    """
    parts = ("weight_scale", "weight_scale_2", "weight_global_scale")
    for part in (*parts, "input_scale", "input_global_scale"):
        for module, value in subject.scalars(part):
            if not (math.isfinite(value) and value > 0):
                yield Hit(
                    f"{module}.{part}",
                    f"is {value:g}",
                    "write the amax of the layer, or 1 for a zero tensor",
                    module,
                )


@check("QR527", Severity.ERROR)
def tied_and_stored(subject: DeclarationSubject) -> Iterator[Hit]:
    """The config ties the head to the embedding, and the file holds both.

    SGLang raises on the second tensor, others load one of them. A quantized head that is tied can't
    be loaded at all.

    Don't write `lm_head`, or set `tie_word_embeddings` to false.
    """
    text = subject.config.get("text_config")
    nested = text.get("tie_word_embeddings") if isinstance(text, dict) else None
    if not subject.config.get("tie_word_embeddings", nested):
        return
    names = [n for n in subject.tensors if n.startswith("lm_head.") or ".lm_head." in n]
    if names:
        yield Hit(
            names[0],
            "is stored although tie_word_embeddings is true",
            "don't write lm_head, or untie it in the config",
            "lm_head",
            subject.config_file,
            1,
        )


@check("QR528", Severity.WARNING)
def no_tokenizer(subject: DeclarationSubject) -> Iterator[Hit]:
    """The directory has no tokenizer or processor files.

    Engines load a directory, not weights: without the files beside them the model does not start.

    Copy everything that is not weights from the original checkpoint.
    """
    present = {path.name for path in subject.directory.iterdir()}
    text = subject.config.get("vocab_size") or subject.config.get("text_config")
    if text and not present.intersection(_TOKENIZER):
        yield Hit(
            str(subject.directory),
            "it holds no tokenizer files",
            "copy the files that are not weights from the original checkpoint",
        )
