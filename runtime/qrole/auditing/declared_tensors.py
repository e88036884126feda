"""QR5xx: stored tensors that lack a part, or whose values no engine can use."""

from __future__ import annotations

import math
from collections.abc import Iterator

from qrole.auditing.declaration import DeclarationSubject, Stored
from qrole.auditing.entries import class_target
from qrole.auditing.registry import Hit, Severity, check
from qrole.checkpoint.fused import fused_groups

_TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


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
