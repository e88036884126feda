"""The model of a search, its units, and what may be chosen for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qrole.emitters import walk
from qrole.errors import NothingMatchedError, UsageError
from qrole.loading import LoadedModel
from qrole.plans import Inventory, Plan, build_plan
from qrole.plugins import Factory
from qrole.quantizers import IdentityQuantizer
from qrole.searching.units import Unit, mix, tied_to, units_of
from qrole.searching.usable import why_not

__all__ = ["Task"]


@dataclass(frozen=True)
class Task:
    """The model and what may be chosen for its units.

    Attributes:
        loaded: The model.
        inventory: Its slots.
        base: The plan in high precision.
        plans: One per candidate.
        names: The candidates' names.
        units: What is decided, each at once.
        allowed: Candidates that may be used, per unit.
        kept: Units that stay in high precision, by reason.
        left_out: Candidates that cannot be used, by reason, with the number of units.
    """

    loaded: LoadedModel
    inventory: Inventory
    base: Plan
    plans: list[Plan]
    names: list[str]
    units: list[Unit]
    allowed: list[list[int]]
    kept: dict[str, list[Unit]]
    left_out: dict[str, int]

    @classmethod
    def of(
        cls, loaded: LoadedModel, factories: list[Factory], engines: Sequence[str], layout: str
    ) -> Task:
        """The task of choosing between factories for a loaded model.

        Args:
            loaded: The model, with its module.
            factories: The candidates; each is asked once per slot.
            engines: Engines that have to load the result.
            layout: Layout of the checkpoint for them.

        Raises:
            UsageError: There is no module.
            NothingMatchedError: No candidate can be used for any layer.
        """
        if loaded.module is None:
            raise UsageError(
                f"{loaded.spec} holds weights only",
                expected="a Python file, or a directory with a config.json that names the model",
                hint="add config.json, or write a model.py whose build() loads these weights",
            )
        inventory = walk(loaded)
        plans = [build_plan(inventory, factory) for factory in factories]
        base = build_plan(inventory, Factory.of(_identity, "high precision"))
        units: list[Unit] = []
        kept: dict[str, list[Unit]] = {}
        for unit in units_of(inventory):
            twin = tied_to(unit, inventory)
            if twin:
                kept.setdefault(f"tied to {twin}", []).append(unit)
            else:
                units.append(unit)
        allowed: list[list[int]] = []
        left_out: dict[str, int] = {}
        for unit in units:
            usable = []
            for i, plan in enumerate(plans):
                reason = why_not(unit, plan, engines, layout)
                if reason:
                    text = f"{factories[i].name}: {reason}"
                    left_out[text] = left_out.get(text, 0) + 1
                else:
                    usable.append(i)
            allowed.append(usable)
        if units and not any(allowed):
            raise NothingMatchedError(
                "no candidate can be used for any layer: " + "; ".join(left_out),
                expected="a candidate that fits the shapes and that the engine loads",
                hint="choose other candidates, another --engine, or another --layout",
            )
        names = [factory.name for factory in factories]
        return cls(loaded, inventory, base, plans, names, units, allowed, kept, left_out)

    def pairs(self) -> list[tuple[int, int]]:
        """Every unit with every candidate that it may get."""
        return [(u, c) for u, usable in enumerate(self.allowed) for c in usable]

    def plan_of(self, choice: dict[int, int]) -> Plan:
        """The plan that gives units their candidates and leaves the rest in high precision."""
        layers = {layer: c for u, c in choice.items() for layer in self.units[u].layers}
        return mix(self.plans, self.base, layers)


def _identity(role: object) -> IdentityQuantizer:
    return IdentityQuantizer()
