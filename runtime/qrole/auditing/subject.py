"""What the checks are given: a plan with its model, in the shapes that checks ask for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrole.auditing.options import AuditOptions
from qrole.factories.rules import RulesFactory
from qrole.plans import Decision, Inventory, Plan
from qrole.quantizers.base import OperandFormat, Quantizer
from qrole.roles import Direction, Gemm, Slot
from qrole.summary import GEMM_OPERANDS

if TYPE_CHECKING:
    from qrole.loading import LoadedModel
    from qrole.unreached import Unreached

__all__ = ["ATTENTION", "Answers", "GemmPair", "Layer", "PlanSubject", "is_hybrid", "source_of"]


def is_hybrid(decision: Decision) -> bool:
    """Whether the answer joins two quantizers, which attention and GEMM outputs refuse."""
    return hasattr(decision.answer, "rowwise_quantizer")


@dataclass(frozen=True)
class Layer:
    """The decisions of one linear layer.

    Attributes:
        module: Path of the module.
        group: Which of the module's layers.
        operands: Decisions by operand; only consumed slots with a usable answer.
    """

    module: str
    group: str
    operands: dict[str, Decision]

    @property
    def path(self) -> str:
        """`module` or `module.group`, as findings name the layer."""
        path = f"{self.module}.{self.group}" if self.group else self.module
        return path or "."

    @property
    def weight(self) -> Decision | None:
        """The weight's decision."""
        return self.operands.get("weight")

    @property
    def shape(self) -> tuple[int, int] | None:
        """(out, in) of one copy's weight, when known."""
        shape = self.weight.slot.shape if self.weight else None
        return (shape[0], shape[1]) if shape is not None and len(shape) == 2 else None


@dataclass(frozen=True)
class GemmPair:
    """Two operands that meet in a GEMM.

    Attributes:
        layer: The layer.
        gemm: fprop, dgrad or wgrad.
        names: Which operands, with their usage, such as `input.row`.
        first: Format of the first.
        second: Format of the second.
    """

    layer: Layer
    gemm: Gemm
    names: tuple[str, str]
    first: OperandFormat
    second: OperandFormat

    @property
    def text(self) -> str:
        """Both operands with their formats."""
        first, second = self.names
        return f"{first} is {self.first.label}, {second} is {self.second.label}"


@dataclass(frozen=True)
class PlanSubject:
    """A plan to check.

    Attributes:
        plan: The plan; decisions may hold errors.
        options: What the user asked for.
        model: The model, where there is one beyond its inventory.
        unreached: Branches of the user's factory that no slot reached.
        untraceable: Why they are not known; `""` where they are.
    """

    plan: Plan
    options: AuditOptions = field(default_factory=AuditOptions)
    model: LoadedModel | None = None
    unreached: tuple[Unreached, ...] = ()
    untraceable: str = ""

    @property
    def inventory(self) -> Inventory:
        """What the emitters found."""
        return self.plan.inventory

    @property
    def rules(self) -> RulesFactory | None:
        """The rules file, where the factory is one."""
        function = self.plan.factory.function
        return function if isinstance(function, RulesFactory) else None

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions that matter: of slots of the pass or passes that will be run."""
        if not self.options.inference:
            return self.plan.decisions
        return tuple(d for d in self.plan.decisions if d.slot.direction is Direction.FORWARD)

    @cached_property
    def usable(self) -> tuple[Decision, ...]:
        """Those with a usable answer whose slots something reads; attention's only in FP8."""
        return tuple(
            d
            for d in self.decisions
            if d.slot.consumed
            and not d.error
            and (self.options.fp8_dpa or d.slot.operand not in ATTENTION)
        )

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Linear layers, in the model's order."""
        found: dict[tuple[str, str], dict[str, Decision]] = {}
        for decision in self.usable:
            slot = decision.slot
            found.setdefault((slot.module, slot.group), {})[slot.operand] = decision
        return tuple(Layer(*key, operands) for key, operands in found.items())

    @cached_property
    def pairs(self) -> tuple[GemmPair, ...]:
        """Every pair of operands that meets, experts with equal answers counted once."""
        return tuple(pair for layer in self.layers for pair in self._pairs(layer))

    @cached_property
    def _answers(self) -> dict[int, Answers]:
        return {id(decision): Answers.of(decision) for decision in self.plan.decisions}

    def answers(self, decision: Decision) -> Answers:
        """The answers of one of the plan's decisions."""
        return self._answers[id(decision)]

    def _pairs(self, layer: Layer) -> Iterator[GemmPair]:
        gemms = [Gemm.FPROP] if self.options.inference else list(Gemm)
        for gemm in gemms:
            (one, usage_one), (two, usage_two) = GEMM_OPERANDS[gemm]
            if one not in layer.operands or two not in layer.operands:
                continue
            names = (f"{one}.{_SHORT[usage_one]}", f"{two}.{_SHORT[usage_two]}")
            first, second = layer.operands[one], layer.operands[two]
            firsts = self.answers(first).formats(first.slot, usage_one)
            seconds = self.answers(second).formats(second.slot, usage_two)
            copies = zip(self.answers(first).of_copy, self.answers(second).of_copy, strict=False)
            for i, j in dict.fromkeys(copies):
                if (a := firsts[i]) is not None and (b := seconds[j]) is not None:
                    yield GemmPair(layer, gemm, names, a, b)


#: Operands of attention.
ATTENTION = ("qkv", "o", "s", "do", "dp", "dqkv")

_SHORT = {"rowwise": "row", "columnwise": "col"}
_QROLE = Path(__file__).resolve().parent.parent


def source_of(decision: Decision | None) -> tuple[str | None, int | None]:
    """File and line that decided; None where they are not the user's to change."""
    origin = decision.origin if decision is not None else None
    if origin is None or origin.file is None or Path(origin.file).is_relative_to(_QROLE):
        return None, None
    return origin.file, origin.line


@dataclass(frozen=True)
class Answers:
    """A slot's answers, equal ones once; experts can have hundreds.

    Attributes:
        kinds: The different answers, in the order of their first appearance.
        of_copy: For every copy the index of its answer in `kinds`.
    """

    kinds: tuple[Any, ...]
    of_copy: tuple[int, ...]

    @classmethod
    def of(cls, decision: Decision) -> Answers:
        """The answers of a decision."""
        kinds: dict[object, tuple[int, Any]] = {}
        of_copy = []
        for answer in decision.answers:
            index, _ = kinds.setdefault(_identity(answer), (len(kinds), answer))
            of_copy.append(index)
        return cls(tuple(answer for _, answer in kinds.values()), tuple(of_copy))

    def formats(self, slot: Slot, usage: str) -> list[OperandFormat | None]:
        """The format of every kind of answer."""
        decisions = [Decision(slot, (kind,)) for kind in self.kinds]
        return [d.rowwise if usage == "rowwise" else d.columnwise for d in decisions]


def _identity(answer: Any) -> object:
    """Something hashable that is equal for equal answers; cheaper than comparing descriptions."""
    key: object = answer
    if isinstance(answer, Quantizer):
        key = (type(answer), *(getattr(answer, option) for option in answer.options))
    try:
        hash(key)
    except TypeError:
        return id(answer)
    return key
