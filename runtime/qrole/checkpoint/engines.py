"""Which serving engine loads which layout and scheme: a table, and the verdicts it gives.

Facts: read in and tried with vLLM 0.33, SGLang 0.5.23, TensorRT-LLM main and
transformers 5.24 with compressed-tensors 0.20.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from qrole.checkpoint.layers import Layer, Selection
from qrole.errors import UnknownNameError, UsageError

__all__ = [
    "ENGINES",
    "EXPERT_SUPPORT",
    "SUPPORT",
    "Level",
    "Verdict",
    "check_engines",
    "scheme_level",
    "scheme_support",
    "verdicts",
]


class Level(StrEnum):
    """Whether an engine loads a checkpoint."""

    YES = "loads"
    LIMITED = "loads with limits"
    NO = "does not load"


ENGINES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "trtllm": "TensorRT-LLM",
    "transformers": "transformers",
}


@dataclass(frozen=True)
class Verdict:
    """What one engine makes of a checkpoint.

    Attributes:
        engine: Key in `ENGINES`.
        level: Whether it loads it.
        reasons: Why not, or what the limits are.
        slots: Ids of the weight slots that stand in the way.
        everywhere: They are those of all layers.
    """

    engine: str
    level: Level
    reasons: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    everywhere: bool = True


#: Encodings that compressed-tensors decodes to bf16 whatever the model's dtype is.
BF16_ONLY = ("nvfp4", "mxfp8", "mxfp4")

_Entry = tuple[Level, str]
_YES: _Entry = (Level.YES, "")
_UNTRIED: _Entry = (Level.LIMITED, "not tried with this engine")


def _no(reason: str) -> _Entry:
    return (Level.NO, reason)


def _limited(reason: str) -> _Entry:
    return (Level.LIMITED, reason)


_NO_SCHEME = _no("has no such scheme")
_IGNORES_MODELOPT = _no("knows no modelopt checkpoints: FP8 ones load silently without scales")

# Per layout and scheme: vllm, sglang, trtllm, transformers.
SUPPORT: dict[str, dict[str, tuple[_Entry, _Entry, _Entry, _Entry]]] = {
    "compressed-tensors": {
        "fp8_tensor": (_YES, _YES, _no("takes FP8 per channel and in blocks only"), _YES),
        "fp8_tensor_dynamic": (
            _UNTRIED,
            _UNTRIED,
            _no("takes FP8 per channel and in blocks only"),
            _YES,
        ),
        "fp8_tensor_a16": (_UNTRIED, _UNTRIED, _NO_SCHEME, _YES),
        "fp8_channel": (_YES, _YES, _YES, _YES),
        "fp8_channel_a16": (_UNTRIED, _UNTRIED, _NO_SCHEME, _YES),
        "fp8_block": (_YES, _YES, _YES, _YES),
        "nvfp4": (
            _YES,
            _limited("runs weight-only below SM100"),
            _limited("maps tensor names for some models only"),
            _YES,
        ),
        "nvfp4_a16": (_YES, _YES, _NO_SCHEME, _YES),
        "mxfp8": (_YES, _NO_SCHEME, _NO_SCHEME, _YES),
        "mxfp8_a16": (_limited("quantizes activations all the same"), _NO_SCHEME, _NO_SCHEME, _YES),
        "mxfp4": (_YES, _NO_SCHEME, _NO_SCHEME, _YES),
        "mxfp4_a16": (_YES, _NO_SCHEME, _limited("for some models only"), _YES),
    },
    "modelopt": {
        "fp8_tensor": (_YES, _YES, _YES, _IGNORES_MODELOPT),
        "fp8_channel": (_YES, _no("takes static FP8 only"), _YES, _IGNORES_MODELOPT),
        "fp8_block": (_YES, _no("takes static FP8 only"), _YES, _IGNORES_MODELOPT),
        "nvfp4": (_YES, _YES, _YES, _IGNORES_MODELOPT),
        "nvfp4_a16": (_YES, _YES, _YES, _IGNORES_MODELOPT),
        "mxfp8": (_YES, _YES, _YES, _IGNORES_MODELOPT),
    },
    "fp8-block": {"fp8_block": (_YES, _YES, _YES, _YES)},
}

# Experts, in transformers 5 with compressed-tensors; dense layers are in the table above.
EXPERT_SUPPORT = {
    "nvfp4": _no("decodes experts without their global scale, silently"),
    "nvfp4_a16": _no("decodes experts without their global scale, silently"),
    "fp8_block": _no("fails on experts in blocks"),
    "mxfp8": _no("fails on MXFP8 experts"),
    "mxfp8_a16": _no("fails on MXFP8 experts"),
    "fp8_tensor": _limited("reports the input_scale of experts as unexpected"),
    "mxfp4": _UNTRIED,
}


def verdicts(layout: str, selection: Selection, dtype: str) -> tuple[Verdict, ...]:
    """What every engine makes of the checkpoint that a selection is or becomes.

    Args:
        layout: Name of the layout.
        selection: What is quantized.
        dtype: What the checkpoint's config names as the model's dtype.
    """
    found = []
    for i, engine in enumerate(ENGINES):
        entries = list(_entries(layout, selection, dtype, engine, i))
        worst = Level.YES
        for level in (Level.LIMITED, Level.NO):
            if any(entry[0] is level for entry, _ in entries):
                worst = level
        if worst is Level.YES:
            found.append(Verdict(engine, worst))
            continue
        chosen = [(entry, layers) for entry, layers in entries if entry[0] is worst]
        reasons = tuple(dict.fromkeys(entry[1] for entry, _ in chosen))
        hit = {layer.module: layer.slot for _, layers in chosen for layer in layers}
        everywhere = len(hit) == len(selection.layers)
        slots = tuple(dict.fromkeys(hit.values()))
        found.append(Verdict(engine, worst, reasons, slots, everywhere))
    return tuple(found)


def check_engines(wanted: Iterable[str], found: Sequence[Verdict]) -> None:
    """Refuses a checkpoint that a wanted engine does not load.

    Raises:
        UnknownNameError: There is no such engine.
        UsageError: It does not load it; names the slots.
    """
    by_name = {verdict.engine: verdict for verdict in found}
    for engine in wanted:
        if engine not in by_name:
            raise UnknownNameError("engine", engine, ENGINES)
        verdict = by_name[engine]
        if verdict.level is Level.NO:
            shown = ", ".join(verdict.slots[:6])
            more = len(verdict.slots) - 6
            raise UsageError(
                f"{ENGINES[engine]} {'; '.join(verdict.reasons)}: slots {shown}"
                + (f" and {more} more" if more > 0 else ""),
                expected=f"schemes and a layout that {ENGINES[engine]} loads",
                hint="give these slots another format, choose another --layout, or leave the "
                "engine out",
            )


def _entries(
    layout: str, selection: Selection, dtype: str, engine: str, column: int
) -> Iterator[tuple[_Entry, list[Layer]]]:
    """Every fact that bears on one engine, with the layers it is about."""
    schemes = selection.schemes()
    table: Mapping[str, tuple[_Entry, ...]] = SUPPORT.get(layout, {})
    for scheme, layers in schemes.items():
        if scheme not in table:
            yield _no(f"does not read the layout {layout}"), layers
            continue
        yield table[scheme][column], layers
        if engine == "vllm" and scheme == "fp8_block":
            ragged = [la for la in layers if len(la.group) > 1 and la.rows % 128]
            if ragged:
                yield _no("joins layers of whole 128-row blocks only"), ragged
        if layout != "compressed-tensors":
            continue
        if engine == "transformers":
            yield from _transformers(scheme, layers, selection, dtype)
        if engine == "sglang" and scheme == "fp8_block":
            heads = [la for la in layers if la.module.endswith("lm_head")]
            if heads:
                yield _no("refuses an output head in FP8 blocks"), heads
    if len(schemes) > 1:
        yield from _mixed(layout, schemes, engine)


def _transformers(
    scheme: str, layers: list[Layer], selection: Selection, dtype: str
) -> Iterator[tuple[_Entry, list[Layer]]]:
    experts = [la for la in layers if ".experts." in la.module]
    if experts and scheme in EXPERT_SUPPORT:
        yield EXPERT_SUPPORT[scheme], experts
    high = any(".experts." in kept.tensor for kept in selection.kept.values())
    if high and not experts and scheme.startswith("nvfp4"):
        yield _no("fails on NVFP4 layers beside experts in high precision"), layers
    if scheme.startswith(BF16_ONLY) and dtype != "bfloat16":
        hint = "decodes these weights to bf16: load it with dtype=torch.bfloat16"
        yield _limited(hint), layers


def model_dtype(config: Mapping[str, Any]) -> str:
    """The dtype that a config names, in which the unquantized part is loaded by default."""
    text = config.get("text_config") or {}
    for place in (config, text if isinstance(text, dict) else {}):
        named = place.get("dtype") or place.get("torch_dtype")
        if named:
            return str(named).removeprefix("torch.")
    return "float32"


def _mixed(
    layout: str, schemes: Mapping[str, list[Layer]], engine: str
) -> Iterator[tuple[_Entry, list[Layer]]]:
    everything = [layer for layers in schemes.values() for layer in layers]
    if layout == "compressed-tensors" and engine == "trtllm":
        yield _limited("takes mixed precision for some models only"), everything
    if layout == "modelopt" and engine == "sglang":
        if not any(scheme.startswith("nvfp4") for scheme in schemes):
            yield _no("takes mixed precision without NVFP4 layers for w4afp8"), everything
        elif schemes.keys() & {"mxfp8", "fp8_block"}:
            yield _limited("maps the scale names of some models only"), everything


def scheme_level(engine: str, layout: str, scheme: str) -> Level:
    """Whether an engine loads layers of one scheme, whatever else the checkpoint holds.

    Raises:
        UnknownNameError: There is no such engine.
    """
    return scheme_support(engine, layout, scheme)[0]


def scheme_support(
    engine: str, layout: str, scheme: str, *, experts: bool = False
) -> tuple[Level, str]:
    """The same with the reason, `""` where it loads; experts can differ from dense layers.

    Raises:
        UnknownNameError: There is no such engine.
    """
    if engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    row = SUPPORT.get(layout, {}).get(scheme)
    if row is None:
        return _no(f"does not read {scheme} in the layout {layout}")
    if experts and engine == "transformers" and layout == "compressed-tensors":
        return max(row[-1], EXPERT_SUPPORT.get(scheme, _YES), key=lambda e: list(Level).index(e[0]))
    return row[list(ENGINES).index(engine)]
