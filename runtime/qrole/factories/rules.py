"""A rules file: an ordered list of patterns on slots, each with the quantizer that it gives.

The first rule that matches decides. A rules file is a factory; what its rules did not do (matched
nothing, lost to an earlier rule, missed their expected count) can be asked of a plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from qrole.factories.patterns import NamePattern, ShapePattern
from qrole.plans import Observer, Origin, Plan
from qrole.quantizers.identity import IdentityQuantizer
from qrole.roles import Direction, QuantizerRole, Slot

__all__ = ["Expected", "Facts", "Rule", "RuleUse", "RulesFactory", "rule_uses", "unclaimed"]

_BACKWARD = frozenset(("grad_output", "grad_input", "do", "dp", "dqkv"))
_FORWARD = frozenset(("input", "weight", "output", "qkv", "o", "s"))


@dataclass(frozen=True)
class Expected:
    """How many slots a rule is meant to decide; experts count one by one.

    Attributes:
        least: At least so many.
        most: At most so many; None means no limit.
    """

    least: int
    most: int | None

    def __contains__(self, count: int) -> bool:
        return self.least <= count and (self.most is None or count <= self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f"{self.least} or more"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


@dataclass(frozen=True)
class Facts:
    """What a rule can ask of a slot; None where it is not known and no rule may match it."""

    module: tuple[str, ...]
    name: tuple[str, ...]
    module_type: tuple[str, ...]
    tensor_type: tuple[str, ...]
    module_class: tuple[str, ...] | None = None
    direction: tuple[str, ...] | None = None
    shape: tuple[int, ...] | None = None

    @classmethod
    def of_slot(cls, slot: Slot) -> Facts:
        """The facts of a slot. A layer within a module also goes by `module.group`."""
        role = slot.role or QuantizerRole()
        paths = (slot.module, f"{slot.module}.{slot.group}") if slot.group else (slot.module,)
        short = slot.module_class.rpartition(".")[2]
        return cls(
            paths,
            (role.name,),
            (role.module_type,),
            (role.tensor_type,),
            (slot.module_class, short) if slot.module_class else None,
            (slot.direction.value,),
            slot.shape,
        )

    @classmethod
    def of_role(cls, role: QuantizerRole | None) -> Facts:
        """The facts of a role alone, whose name stands for the module's path."""
        role = role or QuantizerRole()
        direction: tuple[str, ...] | None = None
        if role.tensor_type in _BACKWARD:
            direction = (Direction.BACKWARD.value,)
        elif role.tensor_type in _FORWARD:
            direction = (Direction.FORWARD.value,)
        return cls(
            (role.name,), (role.name,), (role.module_type,), (role.tensor_type,), None, direction
        )

    def values(self, key: str) -> tuple[str, ...] | None:
        """The values that a key of a rule is matched against."""
        found: tuple[str, ...] | None = getattr(self, "module_class" if key == "class" else key)
        return found


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        index: Position in the file, from 1.
        line: Line of its header; None where the file does not use `[[rule]]` headers.
        names: Patterns by key; one of a key's patterns must match.
        shape: Pattern of the tensor's shape; None matches any, also an unknown one.
        answer: What it gives, as text.
        factory: Answers for the slots that the rule takes.
        expected: How many slots it is meant to decide; None where the file does not say.
        reason: Why it is there.
        label: A name for it; `""` for none.
    """

    index: int
    line: int | None
    names: dict[str, tuple[NamePattern, ...]]
    shape: ShapePattern | None
    answer: str
    factory: Callable[[QuantizerRole | None], Any] = field(repr=False, compare=False)
    expected: Expected | None = None
    reason: str = ""
    label: str = ""

    def __str__(self) -> str:
        return f"rule {self.index} ({self.label})" if self.label else f"rule {self.index}"

    @property
    def condition(self) -> str:
        """Its patterns as one line of text."""
        parts = [f"{k} = {_join(p.text for p in found)}" for k, found in self.names.items()]
        if self.shape is not None:
            parts.append(f"shape = {self.shape}")
        return ", ".join(parts) or "everything"

    def mismatch(self, facts: Facts) -> str:
        """The first key that does not match, in words; `""` where the rule matches."""
        for key, found in self.names.items():
            values = facts.values(key)
            if values is None:
                return f"{key} is not known, and must match {_join(p.text for p in found)}"
            if not any(p.matches(value) for p in found for value in values):
                return f"{key} {values[0]!r} does not match {_join(p.text for p in found)}"
        if self.shape is not None:
            if facts.shape is None:
                return f"the shape is not known, and must match {self.shape}"
            if not self.shape.matches(facts.shape):
                return f"shape {list(facts.shape)} does not match {self.shape}"
        return ""


@dataclass(frozen=True)
class RulesFactory:
    """Answers by the first rule that matches; what none matches gets the default.

    Attributes:
        file: The rules file, as it was named.
        rules: In order.
        default: Answers where no rule matches; None leaves such slots in high precision.
        default_name: How the file names it.
    """

    file: str
    rules: tuple[Rule, ...]
    default: Callable[[QuantizerRole | None], Any] | None = field(default=None, repr=False)
    default_name: str = ""

    def __call__(self, role: QuantizerRole | None) -> Any:
        """The answer where only a role is known: rules that ask for more do not match."""
        rule = self.first(Facts.of_role(role))
        if rule is not None:
            return rule.factory(role)
        return self.default(role) if self.default is not None else IdentityQuantizer()

    def decide_slot(self, slot: Slot, observe: Observer | None) -> tuple[Any, Origin | None]:
        """The answer for a slot, and the rule that gave it."""
        rule = self.first(Facts.of_slot(slot))
        factory = rule.factory if rule is not None else self.default
        if factory is None:
            return IdentityQuantizer(), Origin("default", self.file, None, "no rule matched")
        if observe is None:
            answer, inner = factory(slot.role), None
        else:
            answer, inner = observe(factory, slot.role)
        text = f"{rule}: {rule.condition} -> {rule.answer}" if rule else f"-> {self.default_name}"
        if inner is not None and inner.file:
            text += f", {inner.file}:{inner.line}: {inner.text}"
        kind = "rule" if rule is not None else "default"
        line = rule.line if rule is not None else None
        return answer, Origin(kind, self.file, line, text, inner.conditions if inner else ())

    def unmet(self, plan: Plan) -> list[str]:
        """Rules that decided nothing, or not as many slots as they expect."""
        found = []
        for use in rule_uses(self, plan):
            where = f"{self.file}:{use.rule.line}: {use.rule}" if use.rule.line else str(use.rule)
            expected = use.rule.expected
            if expected is not None and use.decided not in expected:
                found.append(f"{where} decides {use.decided} slots and expects {expected}")
            elif expected is None and not use.decided:
                lost = f"; {use.lost_to[0][0]} takes what it matches" if use.lost_to else ""
                found.append(f"{where} ({use.rule.condition}) decides no slot{lost}")
        return found

    def first(self, facts: Facts) -> Rule | None:
        """The rule that decides; None where none matches."""
        return next((rule for rule in self.rules if not rule.mismatch(facts)), None)


@dataclass(frozen=True)
class RuleUse:
    """What one rule did in a plan; experts count one by one.

    Attributes:
        rule: The rule.
        decided: Slots that it decided.
        matched: Slots that its patterns match, earlier rules aside.
        lost_to: How many of those each earlier rule took, most first.
    """

    rule: Rule
    decided: int
    matched: int
    lost_to: tuple[tuple[Rule, int], ...]


def rule_uses(factory: RulesFactory, plan: Plan) -> list[RuleUse]:
    """What every rule did in a plan."""
    decided: Counter[int] = Counter()
    matched: Counter[int] = Counter()
    lost: dict[int, Counter[int]] = {rule.index: Counter() for rule in factory.rules}
    for slot in plan.inventory.slots:
        facts = Facts.of_slot(slot)
        found = [rule.index for rule in factory.rules if not rule.mismatch(facts)]
        for index in found:
            matched[index] += slot.copies
        if found:
            decided[found[0]] += slot.copies
        for index in found[1:]:
            lost[index][found[0]] += slot.copies
    by_index = {rule.index: rule for rule in factory.rules}
    return [
        RuleUse(
            rule,
            decided[rule.index],
            matched[rule.index],
            tuple((by_index[i], n) for i, n in lost[rule.index].most_common()),
        )
        for rule in factory.rules
    ]


def unclaimed(factory: RulesFactory, plan: Plan) -> list[Slot]:
    """The slots that no rule matches."""
    return [s for s in plan.inventory.slots if factory.first(Facts.of_slot(s)) is None]


def _join(texts: Iterable[str]) -> str:
    return " or ".join(texts)
