"""A choice written as a rules file: few globs, the evidence beside each rule."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from qrole.plans import Plan
from qrole.searching.globs import cover
from qrole.searching.units import Layer, Unit

__all__ = ["rules_text"]


def rules_text(
    units: Sequence[Unit],
    names: Sequence[str],
    choice: Sequence[int],
    plans: Sequence[Plan],
    evidence: Callable[[int, int, int], tuple[float, str]],
    kept: Mapping[str, Sequence[Unit]],
    header: Sequence[str],
) -> str:
    """The text of a rules file.

    Args:
        units: What was decided at once.
        names: Factories as `--factory` takes them, by candidate.
        choice: Candidate per unit.
        plans: Plan per candidate.
        evidence: What a unit gains from its candidate over the default one, and in words.
        kept: Units that stay in high precision, by reason.
        header: Lines of comment on top.
    """
    default = Counter(choice).most_common(1)[0][0]
    everything = [layer for unit in units for layer in unit.layers]
    lines = [*(f"# {line}".rstrip() for line in header), "", "version = 1"]
    lines.append(f"default = {json.dumps(names[default])}")
    for reason, some in kept.items():
        layers = {layer for unit in some for layer in unit.layers}
        lines += _rule([], layers, everything, "high_precision", plans[default], reason)
    for candidate in sorted(set(choice) - {default}, key=lambda c: -list(choice).count(c)):
        members = [i for i, c in enumerate(choice) if c == candidate]
        layers = {layer for i in members for layer in units[i].layers}
        gains = sorted((evidence(i, candidate, default) for i in members), reverse=True)
        texts = [text for _, text in gains[:_EVIDENCE]]
        if len(gains) > _EVIDENCE:
            texts.append(f"and {len(gains) - _EVIDENCE} more")
        others = [layer for layer in everything if layer not in layers]
        larger = sum(gain for gain, _ in gains) >= 0
        verb = "gain most from" if larger else "lose least by"
        reason = f"the {len(layers)} layers that {verb} it"
        lines += _rule(texts, layers, others, names[candidate], plans[candidate], reason)
    return "\n".join(lines) + "\n"


_EVIDENCE = 12


def _rule(
    comments: Sequence[str],
    layers: Collection[Layer],
    others: Collection[Layer],
    factory: str,
    plan: Plan,
    reason: str,
) -> list[str]:
    globs = cover([_path(layer) for layer in layers], [_path(layer) for layer in others])
    slots = (s for s in plan.inventory.slots if (s.module, s.group) in layers)
    return [
        "",
        "[[rule]]",
        *(f"# {text}" for text in comments),
        f"module = {json.dumps(globs if len(globs) > 1 else globs[0])}",
        f"factory = {json.dumps(factory)}",
        f"expect = {sum(slot.copies for slot in slots)}",
        f"reason = {json.dumps(reason)}",
    ]


def _path(layer: Layer) -> str:
    module, group = layer
    return f"{module}.{group}" if group else module
