"""QR5xx: layers that should stay as they are, and plans that engines can't load."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from qrole.auditing.engine_support import missing_support
from qrole.auditing.pairing import layer_hit
from qrole.auditing.registry import Hit, Severity, check
from qrole.auditing.subject import Layer, PlanSubject
from qrole.checkpoint.fused import fused_groups
from qrole.checkpoint.schemes import Fp8Mode, Scheme, scheme_of, weight_format
from qrole.errors import ConfigError
from qrole.plans import Decision

_HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output_layer|score|classifier|head)$")
_ROUTER = re.compile(r"(^|\.)(router|shared_expert_gate)(\.(layer|classifier|linear))?$")
_GATE = re.compile(r"(^|\.)(gate|wg)$")
_ROUTER_CLASS = re.compile(r"(Router|TopK\w*Gate)$")
_NORM = re.compile(r"(^|\.)\w*(norm|ln_\w+)$", re.IGNORECASE)
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|word_embeddings|position_embeddings|wte|wpe)$")


def _quantized(decision: Decision | None) -> bool:
    formats = (decision.rowwise, decision.columnwise) if decision is not None else ()
    return any(f is not None and f.family != "high_precision" for f in formats)


def _quantized_layers(subject: PlanSubject) -> Iterator[Layer]:
    for layer in subject.layers:
        if _quantized(layer.weight):
            yield layer


@check("QR501", Severity.WARNING)
def head_quantized(subject: PlanSubject) -> Iterator[Hit]:
    """The output head is quantized.

    Errors of the head go straight into the logits; recipes for training and for serving leave it in
    high precision. SGLang loads a quantized head only where a target names it, and not in FP8
    blocks.

    Return IdentityQuantizer for it, or ignore the code where it is meant.
    """
    for layer in _quantized_layers(subject):
        if _HEAD.search(layer.path):
            yield layer_hit(
                layer,
                f"the output head gets {layer.operands['weight'].label}",
                "keep the head in high precision",
                layer.weight,
            )


@check("QR502", Severity.ERROR)
def router_quantized(subject: PlanSubject) -> Iterator[Hit]:
    """The router of a mixture of experts is quantized.

    A router decides between experts by small differences; quantized, tokens go elsewhere. Engines
    hold it in high precision: a written router of half the width does not load.

    Return IdentityQuantizer for routers (`mlp.gate`, `router`, `shared_expert_gate`).
    """
    blocks = _expert_blocks(subject)
    for layer in _quantized_layers(subject):
        weight = layer.operands["weight"]
        beside_experts = layer.path.rpartition(".")[0] in blocks
        if (
            _ROUTER.search(layer.path)
            or _ROUTER_CLASS.search(weight.slot.module_class)
            or (_GATE.search(layer.path) and beside_experts)
        ):
            yield layer_hit(
                layer,
                f"the router gets {weight.label}",
                "keep routers in high precision",
                weight,
            )


def _expert_blocks(subject: PlanSubject) -> frozenset[str]:
    """Paths of the modules that hold experts; a `gate` beside them is no part of a SwiGLU."""
    modules = [slot.module for slot in subject.inventory.slots]
    modules += [found.module for found in subject.inventory.uncovered]
    return frozenset(
        module[: module.find(".experts")] for module in modules if ".experts" in module
    )


@check("QR503", Severity.WARNING)
def lookup_or_norm_quantized(subject: PlanSubject) -> Iterator[Hit]:
    """An embedding or a norm is quantized.

    Neither is a matrix product: nothing gets faster, and both are sensitive. vLLM loads quantized
    embeddings only as weight-only integers.

    Return IdentityQuantizer for them.
    """
    for layer in _quantized_layers(subject):
        for pattern, kind in ((_NORM, "norm"), (_EMBEDDING, "embedding")):
            if pattern.search(layer.module) and not layer.group:
                yield layer_hit(
                    layer,
                    f"the {kind} gets {layer.operands['weight'].label}",
                    f"keep {kind}s in high precision",
                    layer.weight,
                )


@check("QR504", Severity.ERROR)
def tied_quantized(subject: PlanSubject) -> Iterator[Hit]:
    """A tied weight is quantized in one of its places.

    A head that shares its weight with the embedding has one tensor for two uses. Quantized in the
    checkpoint, the embedding is quantized as well, or the tie breaks and the file holds two
    tensors; engines refuse either. In training both uses read the same parameter and only one of
    them is quantized.

    Keep tied weights in high precision, or untie them first.
    """
    twins = {name: group for group in subject.inventory.tied for name in group}
    for layer in _quantized_layers(subject):
        parameters = layer.operands["weight"].slot.parameters
        group = next((twins[name] for name in parameters if name in twins), None)
        if group is not None:
            others = ", ".join(name for name in group if name not in parameters)
            yield layer_hit(
                layer,
                f"its weight is tied to {others or ', '.join(group)}",
                "keep tied weights in high precision, or untie them",
                layer.weight,
            )


@check("QR505", Severity.ERROR)
def fused_neighbours_differ(subject: PlanSubject) -> Iterator[Hit]:
    """Layers that engines fuse have different formats.

    Engines load q, k and v, gate and up, w1 and w3 as one matrix. vLLM and SGLang take the first
    one's scheme for all of them without a word, or refuse the checkpoint where one is not
    quantized. In training they are fused as well, by TransformerEngine's own layers.

    Give all of them equal quantizers.
    """
    by_path = {layer.path: layer for layer in subject.layers}
    groups = fused_groups(by_path)
    for members in dict.fromkeys(groups[path] for path in by_path if path in groups):
        stored = {path: _stored(by_path[path]) for path in members}
        if len(set(stored.values())) > 1:
            shown = ", ".join(f"{p.rpartition('.')[2]} {s}" for p, s in stored.items())
            yield layer_hit(
                by_path[members[0]],
                f"engines fuse it with its neighbours, which differ: {shown}",
                "give all of them equal quantizers",
                by_path[members[0]].weight,
            )


def _stored(layer: Layer) -> str:
    """What a fused matrix takes over from a layer: formats of weight and input, row-wise."""
    labels = []
    for operand in ("weight", "input"):
        decision = layer.operands.get(operand)
        fmt = decision.rowwise if decision is not None else None
        labels.append(fmt.label if fmt is not None else "nothing")
    return labels[0] if labels[0] == labels[1] else " with input ".join(labels)


@check("QR506", Severity.ERROR)
def expert_projections_differ(subject: PlanSubject) -> Iterator[Hit]:
    """The projections of one layer's experts have different formats.

    Engines run gate, up and down of all experts in one kernel and read one scheme for them.

    Give all projections of an experts module equal formats.
    """
    found: dict[str, list[Layer]] = defaultdict(list)
    for layer in subject.layers:
        if layer.weight is not None and (layer.weight.slot.copies > 1 or _expert(layer.path)):
            found[_expert(layer.path) or layer.module].append(layer)
    for path, layers in found.items():
        stored = {layer.path.rpartition(".")[2]: _stored(layer) for layer in layers}
        if len(set(stored.values())) > 1:
            shown = ", ".join(f"{name} {label}" for name, label in stored.items())
            yield Hit(
                path,
                f"the projections of its experts differ: {shown}",
                "give all projections of the experts equal formats",
                layers[0].module,
            )


def _expert(path: str) -> str:
    """The experts module that a path lies in; `""` where it lies in none."""
    head, found, tail = path.rpartition(".experts.")
    return f"{head}.experts" if found and tail[:1].isdigit() else ""


@check("QR509", Severity.ERROR)
def engine_can_not_load(subject: PlanSubject) -> Iterator[Hit]:
    """The engine can't load the formats of the plan.

    Every engine reads some schemes from some layouts of checkpoints, and one checkpoint has one
    layout. vLLM reads all of them; SGLang has no MXFP8 in compressed-tensors, TensorRT-LLM prefers
    ModelOpt's layout, transformers reads compressed-tensors only and dequantizes experts, some of
    them wrongly.

    Checked with `--engine NAME`. Change the format of the layers named, or use another engine.
    """
    if not subject.options.engines:
        return
    schemes = [(layer, scheme) for layer, scheme, _ in _schemes(subject) if scheme is not None]
    asked = {(scheme.name, _is_experts(layer)) for layer, scheme in schemes}
    for engine in subject.options.engines:
        for refused, reason in missing_support(engine, asked).items():
            for layer, scheme in schemes:
                if (scheme.name, _is_experts(layer)) == refused:
                    yield layer_hit(
                        layer,
                        f"{engine} does not load {scheme.name}: it {reason}",
                        "use a format that the engine loads",
                        layer.weight,
                    )


@check("QR510", Severity.WARNING)
def no_engine_stores(subject: PlanSubject) -> Iterator[Hit]:
    """No checkpoint layout stores the layer in this format.

    Row-scaled NVFP4, E5M2 weights, formats of one's own, and a weight and an input of different
    families have no counterpart in the layouts that serving engines read.

    Checked with `--inference` or `--engine`. Give the layer another format before `qrole apply`.
    """
    if not (subject.options.inference or subject.options.engines):
        return
    for layer, _, problem in _schemes(subject):
        if problem:
            yield layer_hit(layer, problem, "choose a format that engines store", layer.weight)


def _schemes(subject: PlanSubject) -> Iterator[tuple[Layer, Scheme | None, str]]:
    """Every quantized layer as it would be stored, or why it can't be."""
    for layer in subject.layers:
        weight, inputs = layer.weight, layer.operands.get("input")
        fmt = weight.rowwise if weight is not None else None
        if fmt is None:
            continue
        mode = Fp8Mode.CHANNEL if fmt.row_scaled else Fp8Mode.STATIC
        try:
            stored, _ = weight_format(fmt, mode)
            if stored is None:
                continue
            scheme, _ = scheme_of(stored, inputs.rowwise if inputs else None, mode, False)
        except ConfigError as error:
            yield layer, None, error.given
            continue
        yield layer, scheme, ""


def _is_experts(layer: Layer) -> bool:
    copies = layer.weight.slot.copies if layer.weight is not None else 1
    return copies > 1 or bool(_expert(layer.path))
