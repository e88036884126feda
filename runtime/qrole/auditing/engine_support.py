"""Which engine loads which scheme from which layout; facts of `spec/checkpoint_formats.md` 1.6, 4.

A plan is written in one layout, so an engine must load all of the plan's schemes from one of them.
FP8 with one scale per tensor may be stored per channel instead, where an engine prefers that.
"""

from __future__ import annotations

from collections.abc import Collection

from qrole.auditing.options import Engine

__all__ = ["missing_support"]

#: (encoding, activations, experts)
Asked = tuple[str, str, bool]

_CT, _MODELOPT, _FP8 = "compressed-tensors", "ModelOpt's layout", "DeepSeek's fp8 layout"

_METHODS = {"compressed-tensors": _CT, "modelopt": _MODELOPT, "fp8": _FP8}

_FP8_ANY = ("fp8_tensor", "fp8_channel")

_LOADS: dict[Engine, dict[str, frozenset[str]]] = {
    Engine.VLLM: {
        _CT: frozenset((*_FP8_ANY, "fp8_block", "nvfp4", "mxfp8", "mxfp4")),
        _MODELOPT: frozenset((*_FP8_ANY, "fp8_block", "nvfp4", "mxfp8")),
        _FP8: frozenset(("fp8_block",)),
    },
    Engine.SGLANG: {
        _CT: frozenset((*_FP8_ANY, "fp8_block", "nvfp4")),
        _MODELOPT: frozenset(("fp8_tensor", "nvfp4", "mxfp8")),
        _FP8: frozenset(("fp8_block",)),
    },
    Engine.TENSORRT_LLM: {
        _CT: frozenset((*_FP8_ANY, "fp8_block")),
        _MODELOPT: frozenset((*_FP8_ANY, "fp8_block", "nvfp4", "mxfp8")),
        _FP8: frozenset(("fp8_block",)),
    },
    Engine.TRANSFORMERS: {
        _CT: frozenset((*_FP8_ANY, "fp8_block", "nvfp4", "mxfp8", "mxfp4")),
        _FP8: frozenset(("fp8_block",)),
    },
}

#: What an engine does wrong with a scheme in experts, though it loads it elsewhere.
_EXPERTS: dict[tuple[Engine, str], str] = {
    (Engine.TRANSFORMERS, "nvfp4"): "its experts are dequantized without the global scale",
    (Engine.TRANSFORMERS, "mxfp8"): "experts in this format do not load",
    (Engine.TRANSFORMERS, "fp8_block"): "experts in this format do not load",
}


def missing_support(engine: Engine, asked: Collection[Asked], method: str = "") -> dict[Asked, str]:
    """What an engine can't load of the schemes that one checkpoint is to hold.

    Args:
        engine: The engine.
        asked: The plan's schemes as (encoding, activations, whether experts have it).
        method: `quant_method` of a checkpoint that is written already; `""` leaves the layout open.

    Returns:
        The reason, by scheme, for the layout in which fewest are missing; empty where all load.
    """
    layouts = _LOADS[engine]
    if method:
        layout = _METHODS.get(method, method)
        layouts = {layout: layouts.get(layout, frozenset())}
    by_layout = {
        layout: {one: reason for one in asked if (reason := _reason(engine, layout, loads, one))}
        for layout, loads in layouts.items()
    }
    return min(by_layout.values(), key=len)


def _reason(engine: Engine, layout: str, loads: frozenset[str], asked: Asked) -> str:
    encoding, activations, experts = asked
    if encoding not in loads:
        return f"it has no such scheme in {layout}"
    if experts and layout == _CT and (engine, encoding) in _EXPERTS:
        return _EXPERTS[engine, encoding]
    if layout == _MODELOPT and activations == "none" and encoding != "nvfp4":
        return f"{layout} has no weight-only form of it"
    return ""
