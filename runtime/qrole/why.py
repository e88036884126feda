"""Why a slot got its quantizer: the line that decided, the conditions, the rules that lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qrole.api import inspect
from qrole.errors import UnknownNameError
from qrole.factories.rules import Facts, Rule, RulesFactory
from qrole.given import as_factory
from qrole.plans import Decision, Plan, build_plan
from qrole.plugins import Factory
from qrole.trace import Tracer

if TYPE_CHECKING:
    from torch import nn

    from qrole.loading import LoadedModel

__all__ = ["Reason", "RuleVerdict", "reasons_of", "why"]


@dataclass(frozen=True)
class RuleVerdict:
    """What one rule of a rules file says of a slot.

    Attributes:
        rule: The rule.
        mismatch: Why it does not match; `""` where it does.
        decides: It is the first that matches.
    """

    rule: Rule
    mismatch: str
    decides: bool


@dataclass(frozen=True)
class Reason:
    """One slot's decision with what is around it.

    Attributes:
        decision: The decision; its origin has the line and the conditions.
        untraceable: Why line and conditions are not known; `""` where they are.
        rules: The verdicts of all rules, in order; empty where the factory is no rules file.
        layer: Labels of the other tensors of the same linear layer, by operand.
        alike: Labels of the slots of the same kind in other modules of the same name, with counts.
    """

    decision: Decision
    untraceable: str
    rules: tuple[RuleVerdict, ...]
    layer: dict[str, str]
    alike: tuple[tuple[str, int], ...]


def why(
    model: str | LoadedModel | nn.Module,
    slot: str,
    factory: str | Callable[..., Any] | Factory,
    **options: Any,
) -> list[Reason]:
    """The reasons behind the slots that a name means.

    Args:
        model: A module, or what the command line takes.
        slot: An id `module:direction[index]`, or a module's path for all its slots.
        factory: A function, or a name as `--factory` takes it.
        **options: As for `inspect`.

    Raises:
        UnknownNameError: No slot or module of that name; the nearest are named.
        QroleError: Model or factory cannot be loaded.
    """
    found = as_factory(factory)
    inventory = inspect(model, **options)
    tracer = Tracer(found)
    plan = build_plan(inventory, found, collect_errors=True, observe=tracer.observe)
    return reasons_of(plan, slot, tracer.untraceable())


def reasons_of(plan: Plan, slot: str, untraceable: str = "") -> list[Reason]:
    """The reasons behind the slots that a name means, in a plan that was watched."""
    path = "" if slot == "." else slot
    decisions = [d for d in plan if d.slot.id == slot or d.slot.module == path]
    if not decisions:
        modules = {s.module for s in plan.inventory.slots}
        at = slot.partition(":")[0] if ":" in slot else ""
        known = {s.id for s in plan.inventory.slots if s.module == at} or modules
        raise UnknownNameError(
            "slot or module", slot, known, hint="`qrole inspect` lists all of them"
        )
    return [_reason(plan, decision, untraceable) for decision in decisions]


def _reason(plan: Plan, decision: Decision, untraceable: str) -> Reason:
    slot = decision.slot
    function = plan.factory.function
    rules: tuple[RuleVerdict, ...] = ()
    if isinstance(function, RulesFactory):
        facts = Facts.of_slot(slot)
        first = function.first(facts)
        rules = tuple(RuleVerdict(r, r.mismatch(facts), r is first) for r in function.rules)
    layer = {
        d.slot.operand: d.label
        for d in plan
        if d.slot.module == slot.module and d.slot.group == slot.group and d.slot.consumed
    }
    layer.pop(slot.operand, None)
    last = slot.module.rpartition(".")[2]
    alike = Counter(
        d.label
        for d in plan
        if d.slot.module != slot.module
        and d.slot.module.rpartition(".")[2] == last
        and (d.slot.operand, d.slot.group, d.slot.index) == (slot.operand, slot.group, slot.index)
        and d.slot.direction is slot.direction
    )
    missing = untraceable if decision.origin is None and not decision.error else ""
    return Reason(decision, missing, rules, layer, tuple(alike.most_common()))
