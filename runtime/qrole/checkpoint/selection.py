"""From a plan to layers: which weight is stored in which scheme, and what stays as it is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from qrole.checkpoint.constraints import SelectOptions, check_neighbours, check_shapes
from qrole.checkpoint.fused import absent_siblings, fused_groups
from qrole.checkpoint.layers import Kept, Layer, Selection
from qrole.checkpoint.parallel import largest_split
from qrole.checkpoint.schemes import scheme_of, weight_format
from qrole.checkpoint.source import FLOATS, Source, SourceTensor
from qrole.errors import ConfigError, NothingMatchedError
from qrole.plans import Decision, Plan

__all__ = ["select"]

_HEADS = ("lm_head", "embed_out")
_NEXT_TOKEN = re.compile(r"(^|\.)(mtp|nextn)\w*\.")
_LAYER = re.compile(r"(^|\.)layers\.(\d+)\.")


@dataclass(frozen=True)
class _Asked:
    """One stored weight and the plan's answers for it."""

    module: str
    tensor: str
    first_row: int
    rows: int
    columns: int
    copy: int
    weight: Decision
    activations: Decision | None


def select(plan: Plan, source: Source, options: SelectOptions) -> Selection:
    """The layers that a plan quantizes in a source, and everything that stays.

    Raises:
        ConfigError: A format that no engine stores; a shape that its format cannot take; fused
            neighbours, or experts of one layer, with different answers. The message names them.
        NothingMatchedError: The plan quantizes no weight of the source.
    """
    kept: dict[str, str] = {}
    dropped = _tied(source)
    layers: dict[str, Layer] = {}
    for asked in _asked(plan, source):
        if asked.tensor in dropped:
            continue
        reason = _untouched(asked, source, options)
        layer = None if reason else _layer(asked, options)
        if layer is None:
            kept[asked.tensor] = reason or "the plan leaves it in high precision"
        else:
            layers[asked.module] = layer
    groups = fused_groups(_weight_modules(source), options.fusions)
    check_shapes(layers, kept, groups, options)
    if not layers:
        raise NothingMatchedError(
            f"the factory {plan.factory.name} quantizes no weight of {source.name}",
            expected="a quantizer for at least one weight role",
            hint=_why_nothing(kept),
        )
    check_neighbours(layers, groups)
    layers = {m: replace(la, group=groups.get(m, (m,))) for m, la in layers.items()}
    order = {name: i for i, name in enumerate(source.tensors)}
    layers = dict(sorted(layers.items(), key=lambda i: (order[i[1].tensor], i[1].first_row)))
    rest = _kept(source, layers, kept, dropped)
    ignore = _ignore(source, rest, groups, dropped, options)
    modules = tuple(dict.fromkeys([*layers, *(k.module for k in rest.values()), *ignore]))
    return Selection(layers, rest, dropped, ignore, modules, tuple(_notes(layers)))


def _asked(plan: Plan, source: Source) -> Iterator[_Asked]:
    """Every stored weight with its weight and input decisions, experts one by one."""
    by_layer: dict[tuple[str, str], dict[str, Decision]] = defaultdict(dict)
    for decision in plan:
        if decision.slot.consumed:
            key = (decision.slot.module, decision.slot.group)
            by_layer[key][decision.slot.operand] = decision
    for operands in by_layer.values():
        if "weight" not in operands:
            continue
        weight, activations = operands["weight"], operands.get("input")
        for copy, name, first_row, rows, columns in _stored(weight, source):
            module = name.removesuffix(".weight")
            if first_row or rows != _rows(source.tensors[name]):
                path, _, last = module.rpartition(".")
                module = f"{path}.{copy}.{last}"
            answers = activations and _of_copy(activations, copy)
            yield _Asked(
                module, name, first_row, rows, columns, copy, _of_copy(weight, copy), answers
            )


def _stored(weight: Decision, source: Source) -> Iterator[tuple[int, str, int, int, int]]:
    """Copy, tensor, first row, rows and columns of each stored weight of a slot."""
    slot = weight.slot
    names = [n for n in slot.parameters if n in source.tensors]
    for i, name in enumerate(names):
        shape = source.tensors[name].shape
        if len(shape) == 2:
            yield i * slot.copies // len(names), name, 0, shape[0], shape[1]
        elif len(shape) == 3 and shape[0] == slot.copies and shape[1:] == slot.shape:
            for copy in range(slot.copies):
                yield copy, name, copy * shape[1], shape[1], shape[2]


def _of_copy(decision: Decision, copy: int) -> Decision:
    if len(decision.answers) <= 1:
        return decision
    return replace(decision, answers=(decision.answers[copy],))


def _rows(tensor: SourceTensor) -> int:
    rows = 1
    for size in tensor.shape[:-1]:
        rows *= size
    return rows


def _untouched(asked: _Asked, source: Source, options: SelectOptions) -> str:
    """Why a weight stays as it is whatever the plan says; `""` where it does not."""
    if source.tensors[asked.tensor].dtype not in FLOATS:
        return f"stored as {source.tensors[asked.tensor].dtype}"
    if _carried_over(asked.module, source):
        return "no module loads it (multi-token prediction)"
    if _is_head(asked, source) and not options.quantize_head:
        return "the output head (--quantize-head quantizes it)"
    return ""


def _is_head(asked: _Asked, source: Source) -> bool:
    """An output head: by its name, or one row per word outside of the numbered layers."""
    parts = asked.module.split(".")
    words = asked.rows == _config(source, "vocab_size")
    return parts[-1] in _HEADS or (words and not any(part.isdigit() for part in parts))


def _carried_over(module: str, source: Source) -> bool:
    """Whether the tensor belongs to blocks that frameworks do not load with the model."""
    if _NEXT_TOKEN.search(f"{module}."):
        return True
    layers, match = _config(source, "num_hidden_layers"), _LAYER.search(f"{module}.")
    return bool(
        match
        and isinstance(layers, int)
        and _config(source, "num_nextn_predict_layers")
        and int(match[2]) >= layers
    )


def _config(source: Source, key: str) -> object:
    text = source.config.get("text_config") or {}
    return source.config.get(key, text.get(key) if isinstance(text, dict) else None)


def _layer(asked: _Asked, options: SelectOptions) -> Layer | None:
    decision = asked.weight
    fmt = decision.rowwise
    if fmt is None:
        raise ConfigError(
            f"slot {decision.slot.id} has no usable answer: {decision.error or decision.label}",
            expected="a quantizer or a delayed-scaling request",
            hint="run `qrole audit` on the factory",
        )
    epsilon = float(getattr(decision.answer, "amax_epsilon", 0.0))
    inputs = asked.activations.rowwise if asked.activations else None
    try:
        weight, note = weight_format(fmt, options.fp8, epsilon)
        if weight is None:
            return None
        scheme, differs = scheme_of(weight, inputs, options.fp8, options.weight_only)
    except ConfigError as error:
        raise ConfigError(
            f"slot {decision.slot.id}: {error.given}", expected=error.expected, hint=error.hint
        ) from error
    return Layer(
        module=asked.module,
        tensor=asked.tensor,
        first_row=asked.first_row,
        rows=asked.rows,
        columns=asked.columns,
        scheme=scheme,
        weight=weight,
        slot=decision.slot.id,
        place=(decision.slot.module, decision.slot.group, asked.copy),
        answer=decision.label,
        note="; ".join(text for text in (note, differs) if text),
        group=(asked.module,),
    )


def _kept(
    source: Source, layers: dict[str, Layer], reasons: dict[str, str], dropped: dict[str, str]
) -> dict[str, Kept]:
    taken = {layer.tensor for layer in layers.values()}
    kept = {}
    for name, tensor in source.tensors.items():
        if not holds_matrix(tensor) or name in taken or name in dropped:
            continue
        reason = reasons.get(name, "has no role")
        kept[name] = Kept(name, _module(name), reason)
    return kept


def _module(tensor: str) -> str:
    """The module that a stored tensor belongs to."""
    return tensor.rpartition(".")[0]


def _weight_modules(source: Source) -> list[str]:
    return [
        n.removesuffix(".weight")
        for n, t in source.tensors.items()
        if n.endswith(".weight") and holds_matrix(t)
    ]


def holds_matrix(tensor: SourceTensor) -> bool:
    """Whether a tensor could be the weight of a layer that engines ask about."""
    return len(tensor.shape) >= 2 and tensor.dtype in FLOATS


def _ignore(
    source: Source,
    kept: dict[str, Kept],
    groups: dict[str, tuple[str, ...]],
    dropped: dict[str, str],
    options: SelectOptions,
) -> tuple[str, ...]:
    """Modules of kept weights, their absent fused siblings, and a head that has no tensor."""
    modules = dict.fromkeys(k.module for k in kept.values() if k.module)
    for members, absent in absent_siblings(groups, options.fusions).items():
        if members[0] in modules:
            modules.update(dict.fromkeys(absent))
    modules.update(dict.fromkeys(_module(name) for name in dropped))
    causal = any("LM" in a or "Generation" in a for a in source.config.get("architectures") or ())
    if causal and not any(n.endswith("lm_head.weight") for n in source.tensors):
        modules["lm_head"] = None
    return tuple(modules)


def _tied(source: Source) -> dict[str, str]:
    """Aliases that are not written: of tied parameters, or a head that the config ties."""
    dropped = dict(source.tied)
    head = next((n for n in source.tensors if n.endswith("lm_head.weight")), None)
    twin = next((n for n in source.tensors if n.endswith("embed_tokens.weight")), None)
    if head and twin and _config(source, "tie_word_embeddings") is True:
        dropped[head] = twin
    return dropped


def _notes(layers: dict[str, Layer]) -> Iterator[str]:
    """One sentence per way in which stored schemes differ from the plan."""
    notes: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for layer in layers.values():
        if layer.note:
            notes[layer.answer, layer.scheme.name, layer.note].append(layer.module)
    for (answer, scheme, note), modules in notes.items():
        yield f"{answer} is stored as {scheme} in {len(modules)} layers: {note}"
    size, cut = largest_split(layers.values())
    if cut:
        many = f"at most {size} GPUs" if size > 1 else "one GPU"
        yield f"blocks of scales stay whole on {many}: more would cut those of {cut}"


def _why_nothing(kept: dict[str, str]) -> str:
    reasons = sorted(set(kept.values()))
    return f"weights were left out: {'; '.join(reasons)}" if reasons else "inspect the model"
