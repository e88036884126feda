"""What engines ask of a selection: whole blocks, and one scheme for what they join."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from qrole.checkpoint.fused import DEFAULT_FUSIONS, Fusion
from qrole.checkpoint.layers import Layer
from qrole.checkpoint.schemes import Fp8Mode
from qrole.errors import ConfigError

__all__ = ["OnShape", "SelectOptions", "check_neighbours", "check_shapes"]

_EXPERT = re.compile(r"^(?P<experts>.*\.experts)\.(?P<index>\d+)\.(?P<projection>\w+)$")


class OnShape(StrEnum):
    """What to do about a weight whose shape its format cannot take."""

    FAIL = "fail"
    FALLBACK = "fallback"


@dataclass(frozen=True)
class SelectOptions:
    """How a plan is turned into schemes.

    Attributes:
        fp8: How FP8 per-tensor scaling is stored.
        weight_only: Leave activations in high precision.
        on_shape: Fail, or keep a weight whose shape does not fit in high precision.
        quantize_head: Quantize the output head as the plan says; it is kept otherwise.
        fusions: Layers that engines join.
        block_rows: FP8 blocks need out_features in whole blocks too.
        own_quantizers: The plan's quantizers are used as they are, whatever engines store.
    """

    fp8: Fp8Mode = Fp8Mode.STATIC
    weight_only: bool = False
    on_shape: OnShape = OnShape.FAIL
    quantize_head: bool = False
    fusions: tuple[Fusion, ...] = DEFAULT_FUSIONS
    block_rows: bool = False
    own_quantizers: bool = False


def check_shapes(
    layers: dict[str, Layer],
    kept: dict[str, str],
    groups: Mapping[str, tuple[str, ...]],
    options: SelectOptions,
) -> None:
    """Fails on, or moves to `kept`, what does not fit; what engines join moves together."""
    kinds: dict[tuple[str, int, int], str] = {}  # few are distinct
    misfits: dict[str, str] = {}
    for module, layer in layers.items():
        kind = (layer.scheme.name, layer.rows, layer.columns)
        if kind not in kinds:
            kinds[kind] = _misfit(layer, options)
        if kinds[kind]:
            misfits[module] = kinds[kind]
    if not misfits:
        return
    if options.on_shape is OnShape.FAIL:
        raise ConfigError(
            f"{len(misfits)} weights do not fit their format: {_listing(misfits)}",
            expected="in_features in whole blocks",
            hint="give these roles another format, or keep them in high precision with "
            "--on-shape fallback",
        )
    reasons = dict(misfits)
    for _, members in _joined(layers, groups):
        first = next((m for m in members if m in misfits), None)
        if first is not None:
            reasons |= {m: f"joined with {first}" for m in members if m not in misfits}
    for module in reasons:
        if module in layers:
            kept[layers.pop(module).tensor] = reasons[module]


def _misfit(layer: Layer, options: SelectOptions) -> str:
    block = layer.scheme.stored.columns
    if layer.columns % block:
        return f"{layer.columns} columns are no multiple of {block} ({layer.scheme.name})"
    if options.block_rows and layer.scheme.encoding == "fp8_block" and layer.rows % 128:
        return f"{layer.rows} rows are no multiple of 128 ({layer.scheme.name})"
    return ""


def check_neighbours(layers: dict[str, Layer], groups: Mapping[str, tuple[str, ...]]) -> None:
    """Fused neighbours, and all experts of one layer, must be stored in one scheme.

    Raises:
        ConfigError: They are not; names them with their schemes.
    """
    stored = {module: (la.scheme.name, la.weight.e4m3_max) for module, la in layers.items()}
    if len(set(stored.values())) == 1 and groups.keys() <= stored.keys():
        return
    for what, members in _joined(layers, groups):
        if len({stored.get(m) for m in members}) > 1:
            answers = {m: _stored_as(layers.get(m)) for m in members}
            raise ConfigError(
                f"{what}, but the plan stores them differently: {_listing(answers)}",
                expected="one format for all of them",
                hint="let the factory give their roles the same quantizer",
            )


def _joined(
    layers: Mapping[str, Layer], groups: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What engines make one of, with the members' names."""
    for members in dict.fromkeys(groups.values()):
        yield f"{', '.join(members)} are one layer in engines", members
    experts: dict[str, list[str]] = defaultdict(list)
    for module in layers:
        if expert := _EXPERT.match(module):
            experts[expert[1]].append(module)
    for path, modules in experts.items():
        yield f"the experts of {path} are one kernel call in engines", tuple(modules)


def _stored_as(layer: Layer | None) -> str:
    if layer is None:
        return "high precision"
    name, limit = layer.scheme.name, layer.weight.e4m3_max
    return name if limit == 448 else f"{name} (block scales up to {limit})"


def _listing(items: Mapping[str, str], limit: int = 8) -> str:
    shown = [f"{name}: {text}" for name, text in list(items.items())[:limit]]
    more = len(items) - limit
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
