"""What is decided at once: a linear layer, or neighbours that engines fuse into one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qrole.checkpoint.fused import fused_groups
from qrole.plans import Decision, Inventory, Plan

__all__ = ["Layer", "Unit", "mix", "tied_to", "units_of"]

Layer = tuple[str, str]


@dataclass(frozen=True)
class Unit:
    """Layers that must share a format.

    Invariant: at least one layer.

    Attributes:
        name: The layers' common path, such as `layers.0.self_attn.(q_proj|k_proj|v_proj)`.
        layers: `(module, group)` of each.
        numel: Elements of their weights, experts counted one by one.
    """

    name: str
    layers: tuple[Layer, ...]
    numel: int

    def __post_init__(self) -> None:
        assert self.layers, "at least one layer"


def units_of(inventory: Inventory) -> list[Unit]:
    """The units of a model, in its order; layers whose weight's shape is unknown have no unit."""
    sizes: dict[Layer, int] = {}
    for slot in inventory.slots:
        if slot.operand == "weight" and slot.shape is not None and slot.consumed:
            sizes[slot.module, slot.group] = math.prod(slot.shape) * slot.copies
    fused = fused_groups(module for module, group in sizes if not group)
    units: list[Unit] = []
    done: set[Layer] = set()
    for layer in sizes:
        if layer in done:
            continue
        module, group = layer
        members = tuple((m, "") for m in fused.get(module, (module,))) if not group else (layer,)
        done.update(members)
        units.append(Unit(_name(members), members, sum(sizes[m] for m in members)))
    return units


def tied_to(unit: Unit, inventory: Inventory) -> str:
    """A tensor that a unit's weight is tied to and that no slot quantizes; `""` for none.

    Such a weight, mostly an output head's, cannot be stored in another format than its twin.
    """
    own = {
        name
        for slot in inventory.slots
        if (slot.module, slot.group) in unit.layers
        for name in slot.parameters
    }
    twins = {name for group in inventory.tied if own & set(group) for name in group} - own
    covered = {name for slot in inventory.slots for name in slot.parameters}
    return min(twins - covered, default="")


def _name(layers: Sequence[Layer]) -> str:
    paths = [f"{module}.{group}" if group else module for module, group in layers]
    if len(paths) == 1:
        return paths[0]
    parent = paths[0].rpartition(".")[0]
    last = "|".join(path.rpartition(".")[2] for path in paths)
    return f"{parent}.({last})" if parent else f"({last})"


def mix(plans: Sequence[Plan], base: Plan, choice: dict[Layer, int]) -> Plan:
    """A plan that takes each layer from the plan chosen for it; no factory is asked again.

    Args:
        plans: One per candidate, of the same inventory.
        base: Where the layers that have no choice come from.
        choice: Index into `plans` by `(module, group)`.
    """

    def pick(i: int, decision: Decision) -> Decision:
        chosen = choice.get((decision.slot.module, decision.slot.group))
        return decision if chosen is None else plans[chosen].decisions[i]

    return replace(base, decisions=tuple(pick(i, d) for i, d in enumerate(base.decisions)))
