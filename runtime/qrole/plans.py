"""A plan: every slot of a model with the quantizer that a factory gave it, and who decided.

`build_plan` calls the factory exactly once per slot and copy, forward slots of a module before its
backward slots, in slot order; answers are kept and never asked for again.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from qrole.errors import FactoryError, NothingMatchedError, QroleError, UnknownNameError
from qrole.quantizers.base import OperandFormat, Quantizer
from qrole.roles import DelayedScalingRequest, Direction, QuantizerRequest, QuantizerRole, Slot
from qrole.user_code import user_traceback

if TYPE_CHECKING:
    from qrole.plugins import Factory

__all__ = [
    "Decision",
    "Inventory",
    "Observer",
    "Origin",
    "Plan",
    "PlanWarning",
    "SlotFactory",
    "Uncovered",
    "build_plan",
]

Observer = Callable[[Callable[..., Any], QuantizerRole | None], tuple[Any, "Origin | None"]]


class PlanWarning(UserWarning):
    """The factory warned while it answered, or its rules did not do what they were written for."""


class SlotFactory(Protocol):
    """A factory that decides by the slot and not by its role alone, such as a rules file.

    `build_plan` calls `decide_slot` where a factory has it. Where only a role is known (a module at
    run time) the factory is called like any other.
    """

    def __call__(self, role: QuantizerRole | None) -> Any:
        """The answer for a role."""

    def decide_slot(self, slot: Slot, observe: Observer | None) -> tuple[Any, Origin | None]:
        """The answer for a slot, and where it was decided.

        Args:
            slot: The slot; its role may be None.
            observe: Calls another factory's function with a role and tells where it decided; None
                where nobody asks.
        """

    def unmet(self, plan: Plan) -> list[str]:
        """What the factory was written to do and did not do in a plan, in sentences."""


@dataclass(frozen=True)
class Uncovered:
    """Parameters of one module that no emitter gives a role.

    Attributes:
        module: Dotted path of the module.
        module_class: Its qualified class name.
        parameters: Full names of the parameters.
        numel: Their elements in total.
        reason: Why they have no role, in a few words.
        quantizable: Whether they feed a matrix product (convolutions, experts that no emitter
            knows), so that leaving them out costs something; norms and biases are not.
    """

    module: str
    module_class: str
    parameters: tuple[str, ...]
    numel: int
    reason: str
    quantizable: bool


@dataclass(frozen=True)
class Inventory:
    """What the emitters found in a model.

    Attributes:
        model: How the model was named by the user.
        slots: Every slot, modules in the order of `named_modules`.
        uncovered: Every parameter that no slot quantizes, grouped by module.
        numel: Elements of all parameters, tied ones counted once.
        emitters: For each module with slots, the name of the emitter that gave them.
        tied: Groups of parameter names that share one tensor.
        notes: Things the user should know, in sentences.
        attention: Attention was asked for: a run under a plan computes it by its slots.
    """

    model: str
    slots: tuple[Slot, ...]
    uncovered: tuple[Uncovered, ...] = ()
    numel: int = 0
    emitters: dict[str, str] = field(default_factory=dict)
    tied: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    attention: bool = False

    def slot(self, slot_id: str) -> Slot:
        """The slot of an id `module:direction[index]`.

        Raises:
            UnknownNameError: There is none; the nearest ids are named.
        """
        return self.slots[self._position(slot_id)]

    def _position(self, slot_id: str) -> int:
        if slot_id not in self._positions:
            raise UnknownNameError("slot", slot_id, self._positions)
        return self._positions[slot_id]

    @functools.cached_property
    def _positions(self) -> dict[str, int]:
        return {slot.id: i for i, slot in enumerate(self.slots)}

    def _repr_html_(self) -> str:
        from qrole.display import inventory_html

        return inventory_html(self)


@dataclass(frozen=True)
class Origin:
    """Where a decision was made.

    Attributes:
        kind: `factory`, `rule` or `default`.
        file: Source file, None where the factory's source is not to be had.
        line: The line that returned the answer, 1-based.
        text: That line, or the rule, without indentation.
        conditions: Conditions passed on the way, as `(line, text, outcome)`.
    """

    kind: str
    file: str | None = None
    line: int | None = None
    text: str = ""
    conditions: tuple[tuple[int, str, bool], ...] = ()

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else (self.file or "")
        return f"{self.kind} {place}".strip()


@dataclass(frozen=True)
class Decision:
    """One slot's answer.

    Attributes:
        slot: The slot.
        answers: What the factory returned, one per copy of the slot, in call order.
        origin: Where the first answer was decided, when it was observed.
        error: Why there is no usable answer; `""` otherwise.
        failure: The exception that said so, with its traceback.
    """

    slot: Slot
    answers: tuple[Any, ...]
    origin: Origin | None = None
    error: str = ""
    failure: QroleError | None = field(default=None, compare=False, repr=False)

    @property
    def answer(self) -> Any:
        """The first copy's answer."""
        return self.answers[0] if self.answers else None

    @property
    def quantizer(self) -> Quantizer | None:
        """The first copy's quantizer; None for a request or an error."""
        return self.answer if isinstance(self.answer, Quantizer) else None

    @property
    def label(self) -> str:
        """What tables show."""
        if self.error:
            return "error"
        if isinstance(self.answer, DelayedScalingRequest):
            return f"FP8 delayed {self.answer.fp8_format.name}"
        return (
            self.answer.label if isinstance(self.answer, Quantizer) else type(self.answer).__name__
        )

    @property
    def rowwise(self) -> OperandFormat | None:
        """Format of the row-wise data; None for an error."""
        return self._format("rowwise")

    @property
    def columnwise(self) -> OperandFormat | None:
        """Format of the column-wise data; None for an error."""
        return self._format("columnwise")

    def _format(self, usage: str) -> OperandFormat | None:
        if isinstance(self.answer, Quantizer):
            return (
                self.answer.rowwise_format if usage == "rowwise" else self.answer.columnwise_format
            )
        if isinstance(self.answer, DelayedScalingRequest):
            forward = self.slot.direction is Direction.FORWARD
            wide = self.answer.fp8_format.name == "HYBRID" and not forward
            element = "e5m2" if wide or self.answer.fp8_format.name == "E5M2" else "e4m3"
            return OperandFormat("fp8_tensor", element, scale="fp32", delayed=True)
        return None


@dataclass(frozen=True)
class Plan:
    """Every slot's decision.

    Attributes:
        inventory: What the emitters found.
        factory: Who answered: name, source file and hash.
        decisions: One per slot, in the inventory's order.
        warnings: What the factory warned of while it answered.
    """

    inventory: Inventory
    factory: Factory
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Decision]:
        return iter(self.decisions)

    def decision(self, slot_id: str) -> Decision:
        """The decision of a slot id; raises UnknownNameError with the nearest ids."""
        return self.decisions[self.inventory._position(slot_id)]

    def of_module(self, module: str, group: str = "") -> dict[str, Decision]:
        """The decisions of one linear layer by operand (`input`, `weight`, `grad_output`, ...)."""
        return self.layers.get((module, group), {})

    @functools.cached_property
    def layers(self) -> dict[tuple[str, str], dict[str, Decision]]:
        """Every linear layer's consumed decisions by operand, keyed by module path and group."""
        layers: dict[tuple[str, str], dict[str, Decision]] = defaultdict(dict)
        for decision in self.decisions:
            slot = decision.slot
            if slot.consumed:
                layers[slot.module, slot.group][slot.operand] = decision
        return dict(layers)

    def counts(self) -> Counter[str]:
        """Number of slots per label, copies counted."""
        counts: Counter[str] = Counter()
        for decision in self.decisions:
            counts[decision.label] += decision.slot.copies
        return counts

    def _repr_html_(self) -> str:
        from qrole.display import plan_html

        return plan_html(self)


def build_plan(
    inventory: Inventory,
    factory: Factory,
    *,
    collect_errors: bool = False,
    observe: Observer | None = None,
) -> Plan:
    """Asks the factory for every slot, once.

    Args:
        inventory: Slots to ask for.
        factory: Who answers.
        collect_errors: Record what goes wrong in the decisions (for the audit) instead of raising.
        observe: Calls the factory and tells where the answer was decided.

    Raises:
        NothingMatchedError: The model has no slot.
        FactoryError: The factory raised, returned None or returned no quantizer.
    """
    if not inventory.slots:
        raise NothingMatchedError(
            f"{inventory.model} has no module that emits a role",
            expected="at least one linear layer, or a module with get_quantizer_roles()",
            hint="`qrole inspect` lists what no emitter covers; entry points of group "
            "qrole.emitters add emitters",
        )
    decisions: list[Decision] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for run in _runs(inventory.slots):
            decisions.extend(_decide(run, factory, collect_errors, observe))
    texts = tuple(dict.fromkeys(str(w.message) for w in caught))
    plan = Plan(inventory, factory, tuple(decisions), texts)
    if not collect_errors:
        unmet = getattr(factory.function, "unmet", None)
        for text in (*texts, *(unmet(plan) if unmet is not None else ())):
            warnings.warn(text, PlanWarning, stacklevel=2)
    return plan


def _runs(slots: tuple[Slot, ...]) -> Iterator[list[Slot]]:
    """Slots that are asked for in turn, copy by copy: experts' slots interleave, others do not."""

    def key(slot: Slot) -> tuple[object, ...]:
        return (slot.module, slot.direction, slot.group, slot.copies)

    for _, run in itertools.groupby(slots, key):
        yield list(run)


def _decide(
    run: list[Slot], factory: Factory, collect_errors: bool, observe: Observer | None
) -> list[Decision]:
    answers: list[list[Any]] = [[] for _ in run]
    origins: list[Origin | None] = [None] * len(run)
    errors = [""] * len(run)
    failures: list[QroleError | None] = [None] * len(run)
    for _ in range(run[0].copies):
        for i, slot in enumerate(run):
            if errors[i]:
                continue
            try:
                answer, origin = _ask(slot, factory, observe if not answers[i] else None)
            except QroleError as error:
                if not collect_errors:
                    raise
                errors[i] = error.given
                failures[i] = error
                continue
            origins[i] = origins[i] or origin
            answers[i].append(answer)
    return [
        Decision(slot, tuple(given), origin, error, failure)
        for slot, given, origin, error, failure in zip(
            run, answers, origins, errors, failures, strict=True
        )
    ]


def _ask(slot: Slot, factory: Factory, observe: Observer | None) -> tuple[Any, Origin | None]:
    decide = getattr(factory.function, "decide_slot", None)
    try:
        if decide is not None:
            answer, origin = decide(slot, observe)
        elif observe is None:
            answer, origin = factory.function(slot.role), None
        else:
            answer, origin = observe(factory.function, slot.role)
    except (Exception, SystemExit) as error:
        if decide is not None and isinstance(error, QroleError):
            raise  # a rules file names its own lines
        raise _raised(slot, factory, error) from error
    _check_answer(slot, factory, answer)
    return answer, origin


def _raised(slot: Slot, factory: Factory, error: BaseException) -> FactoryError:
    """What a factory raised, with the user's line; a wrong option keeps what was expected of it."""
    known = error if isinstance(error, QroleError) else None
    return FactoryError(
        f"factory {factory.name} raised {type(error).__name__} for slot {slot.id} "
        f"with role {slot.role}: {known.given if known else error}",
        traceback=user_traceback(error, factory.file),
        expected=known.expected
        if known
        else "a quantizer for every role, None (boundary slots) and bare roles included",
        hint=known.hint
        if known
        else "handle the role in the factory, or return IdentityQuantizer() for it",
    )


def _check_answer(slot: Slot, factory: Factory, answer: object) -> None:
    if isinstance(answer, (Quantizer, QuantizerRequest)):
        return
    if answer is None:
        raise FactoryError(
            f"factory {factory.name} returned None for slot {slot.id} with role {slot.role}",
            fault="none",
            expected="a quantizer; None does not mean 'leave in high precision'",
            hint="return IdentityQuantizer() for a tensor that is not quantized",
        )
    returned = _described(answer)
    raise FactoryError(
        f"factory {factory.name} returned {returned} for slot {slot.id} with role {slot.role}",
        fault="type",
        returned=returned,
        expected="an instance of qrole.Quantizer or qrole.QuantizerRequest",
        hint="return a quantizer object, not its class or its name",
    )


def _described(answer: object) -> str:
    """What a factory returned, equal for equal mistakes: no addresses."""
    if isinstance(answer, type):
        return f"the class {answer.__name__}"
    if isinstance(answer, (str, int, float)):
        return f"{answer!r} of type {type(answer).__name__}"
    return f"an object of type {type(answer).__name__}"
