"""From a plan to layers: which weight is stored in which scheme, and what stays as it is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from qrole.checkpoint.answers import StoredWeight, stored_weights
from qrole.checkpoint.constraints import SelectOptions, check_neighbours, check_shapes
from qrole.checkpoint.fused import absent_siblings, fused_groups
from qrole.checkpoint.layers import Kept, Layer, Selection
from qrole.checkpoint.native.weights import NativeWeight, seed_of
from qrole.checkpoint.parallel import largest_split
from qrole.checkpoint.source import FLOATS, Source, SourceTensor
from qrole.errors import NothingMatchedError
from qrole.plans import Plan
from qrole.quantizers import Quantizer

__all__ = ["select"]

_HEADS = ("lm_head", "embed_out")
_NEXT_TOKEN = re.compile(r"(^|\.)(mtp|nextn)")
_LAYER = re.compile(r"(^|\.)layers\.(\d+)\.")


def select(plan: Plan, source: Source, options: SelectOptions) -> Selection:
    """The layers that a plan quantizes in a source, and everything that stays.

    Raises:
        ConfigError: A format that no engine stores; a shape that its format cannot take; fused
            neighbours, or experts of one layer, with different answers. The message names them.
        NothingMatchedError: The plan quantizes no weight of the source.
    """
    dropped = _tied(source)
    groups = fused_groups(_weight_modules(source), options.fusions)
    layers, kept = _sorted_out(plan, source, options, dropped, groups)
    if not options.own_quantizers:
        check_shapes(layers, kept, groups, options)
    if not layers:
        raise NothingMatchedError(
            f"the factory {plan.factory.name} quantizes no weight of {source.name}",
            expected="a quantizer for at least one weight role",
            hint=_why_nothing(kept),
        )
    if not options.own_quantizers:
        check_neighbours(layers, groups)
    layers = _in_order(layers, source)
    rest = _kept(source, layers, kept, dropped)
    ignore = _ignore(source, rest, groups, dropped, options)
    modules = tuple(dict.fromkeys([*layers, *(k.module for k in rest.values()), *ignore]))
    return Selection(layers, rest, dropped, ignore, modules, tuple(_notes(layers, options)))


def _in_order(layers: dict[str, Layer], source: Source) -> dict[str, Layer]:
    """The layers in the order of the source's tensors; those of one tensor come by their rows."""
    place = {name: i for i, name in enumerate(source.tensors)}
    ordered = sorted(layers.values(), key=lambda layer: place[layer.tensor])
    return {layer.module: layer for layer in ordered}


def _sorted_out(
    plan: Plan,
    source: Source,
    options: SelectOptions,
    dropped: dict[str, str],
    groups: dict[str, tuple[str, ...]],
) -> tuple[dict[str, Layer], dict[str, str]]:
    """The layers that the plan quantizes, and why the other weights stay."""
    layers: dict[str, Layer] = {}
    kept: dict[str, str] = {}
    untouched = _Untouched(source, options)
    for asked in stored_weights(plan, source, options):
        reasons: dict[tuple[int, int, str], str] = {}
        for weight in asked.weights:
            module, tensor, first_row, rows, columns, copy = weight
            if tensor in dropped:
                continue
            dtype, answer = source.tensors[tensor].dtype, asked.answers[copy]
            # Beyond this, weights of one slot differ in the expert's number and the projection.
            kind = (rows, columns, dtype)
            if kind not in reasons:
                reasons[kind] = untouched.reason(weight)
            if reasons[kind] or answer.scheme is None or answer.weight is None:
                kept[tensor] = reasons[kind] or "the plan leaves it in high precision"
                continue
            layers[module] = Layer(
                module,
                tensor,
                first_row,
                rows,
                columns,
                answer.scheme,
                answer.weight,
                asked.slot,
                asked.places[copy],
                answer.label,
                answer.note,
                groups.get(module) or (module,),
                _native(answer.quantizer, module, dtype),
            )
    return layers, kept


def _native(quantizer: Quantizer | None, module: str, dtype: str) -> NativeWeight | None:
    if quantizer is None:
        return None
    return NativeWeight(quantizer, dtype, seed_of(quantizer, module))


class _Untouched:
    """Why a weight stays as it is whatever the plan says.

    Args:
        source: Its config tells of the vocabulary, and of blocks that are not loaded.
        options: Whether the output head is quantized.
    """

    def __init__(self, source: Source, options: SelectOptions) -> None:
        self._tensors = source.tensors
        self._vocabulary = _config(source, "vocab_size")
        self._quantize_head = options.quantize_head
        layers = _config(source, "num_hidden_layers")
        extra = isinstance(layers, int) and _config(source, "num_nextn_predict_layers")
        self._last = layers if extra and isinstance(layers, int) else None

    def reason(self, asked: StoredWeight) -> str:
        """`""` where nothing speaks against it."""
        dtype = self._tensors[asked.tensor].dtype
        if dtype not in FLOATS:
            return f"stored as {dtype}"
        if not asked.rows * asked.columns:
            return "empty"
        if self._carried_over(asked.module):
            return "no module loads it (multi-token prediction)"
        if not self._quantize_head and self._is_head(asked):
            return "the output head (--quantize-head quantizes it)"
        return ""

    def _is_head(self, asked: StoredWeight) -> bool:
        """By its name, or by one row per word outside of the numbered layers."""
        if asked.module.endswith(_HEADS):
            return True
        words = asked.rows == self._vocabulary
        return words and not any(part.isdigit() for part in asked.module.split("."))

    def _carried_over(self, module: str) -> bool:
        """Whether it belongs to blocks that frameworks do not load with the model."""
        if _NEXT_TOKEN.search(module):
            return True
        found = _LAYER.search(module) if self._last is not None else None
        return found is not None and self._last is not None and int(found[2]) >= self._last


def _config(source: Source, key: str) -> object:
    text = source.config.get("text_config") or {}
    return source.config.get(key, text.get(key) if isinstance(text, dict) else None)


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
    beside = {module: groups[module] for module in modules if module in groups}
    for members, absent in absent_siblings(beside, options.fusions).items():
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
    if _config(source, "tie_word_embeddings") is not True:
        return dropped
    head = next((n for n in source.tensors if n.endswith("lm_head.weight")), None)
    twin = next((n for n in source.tensors if n.endswith("embed_tokens.weight")), None)
    if head and twin:
        dropped[head] = twin
    return dropped


def _notes(layers: dict[str, Layer], options: SelectOptions) -> Iterator[str]:
    """One sentence per way in which stored schemes differ from the plan."""
    notes: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for layer in layers.values():
        if layer.note:
            notes[layer.answer, layer.scheme.name, layer.note].append(layer.module)
    for (answer, scheme, note), modules in notes.items():
        yield f"{answer} is stored as {scheme} in {len(modules)} layers: {note}"
    if options.own_quantizers:
        return  # no engine splits what none loads
    size, cut = largest_split(layers.values())
    if cut:
        many = f"at most {size} GPUs" if size > 1 else "one GPU"
        yield f"blocks of scales stay whole on {many}: more would cut those of {cut}"


def _why_nothing(kept: dict[str, str]) -> str:
    reasons = sorted(set(kept.values()))
    return f"weights were left out: {'; '.join(reasons)}" if reasons else "inspect the model"
