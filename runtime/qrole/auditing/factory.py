"""QR2xx: what the factory does wrong, whatever the formats are."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from qrole.auditing.registry import Hit, Severity, check
from qrole.auditing.subject import PlanSubject, source_of
from qrole.errors import FactoryError, QroleError
from qrole.plans import Decision
from qrole.quantizers.base import Quantizer
from qrole.roles import DelayedScalingRequest

_LAST_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


@check("QR201", Severity.ERROR)
def returns_none(subject: PlanSubject) -> Iterator[Hit]:
    """The factory returns None.

    None does not mean "leave this tensor alone". TransformerEngine raises while it builds the
    module's quantizers. It happens most with boundary slots, whose role is None, and where a chain
    of `if`s has no last `return`.

    Return `IdentityQuantizer()` for a tensor that stays in high precision.
    """
    yield from _failures(
        subject, "none", "returns None", "return IdentityQuantizer() for what is not quantized"
    )


@check("QR202", Severity.ERROR)
def returns_no_quantizer(subject: PlanSubject) -> Iterator[Hit]:
    """The factory returns something that is no quantizer.

    A class instead of an instance, a string, a recipe, or a bare QuantizerRequest.
    TransformerEngine does not check it; the module fails much later, when it sets the usage of what
    it was given.

    Return an instance of a Quantizer class, or a DelayedScalingRequest.
    """
    yield from _failures(subject, "type", "returns", "return an instance of a quantizer class")
    for decision in subject.decisions:
        bad = [a for a in decision.answers if not isinstance(a, Quantizer | DelayedScalingRequest)]
        if bad:
            yield _hit(
                decision,
                f"returns a {type(bad[0]).__name__}, which nothing turns into a quantizer",
                "return a quantizer, or a DelayedScalingRequest",
            )


@check("QR203", Severity.ERROR)
def raises(subject: PlanSubject) -> Iterator[Hit]:
    """The factory raises.

    A factory is called for every slot of a module, also for those without a role (None), for
    attention slots that only have a hint as their name, and for slots of modules that give empty
    roles. `role.tensor_type` on None is the usual case.

    Handle the role, or return `IdentityQuantizer()` for it.
    """
    for decision in subject.plan:
        failure = decision.failure
        if failure is None or (isinstance(failure, FactoryError) and failure.fault != "raised"):
            continue
        what = _what_was_raised(failure)
        file, line = _last_frame(failure)
        yield Hit(
            _place(decision),
            f"raises {what} for role {_kind(decision)}",
            "handle this role in the factory, or return IdentityQuantizer() for it",
            decision.slot.module,
            file,
            line,
        )


def _failures(subject: PlanSubject, fault: str, message: str, to_do: str) -> Iterator[Hit]:
    for decision in subject.plan:
        failure = decision.failure
        if isinstance(failure, FactoryError) and failure.fault == fault:
            what = f"{message} {failure.returned}".rstrip()
            yield _hit(decision, f"{what} for role {_kind(decision)}", to_do)


def _kind(decision: Decision) -> str:
    role = decision.slot.role
    if role is None:
        return "None (a boundary slot)"
    return f"{role.module_type or 'without type'}/{role.tensor_type or 'without type'}"


def _place(decision: Decision) -> str:
    slot = decision.slot
    return f"{slot.module or '.'}:{slot.direction}[{slot.index}]"


def _hit(decision: Decision, message: str, to_do: str) -> Hit:
    return Hit(_place(decision), message, to_do, decision.slot.module, *source_of(decision))


def _what_was_raised(failure: QroleError) -> str:
    cause = failure.__cause__
    if cause is None:
        return f"{type(failure).__name__}: {failure.given}"
    return f"{type(cause).__name__}: {cause.given if isinstance(cause, QroleError) else cause}"


def _last_frame(failure: QroleError) -> tuple[str | None, int | None]:
    found = list(_LAST_FRAME.finditer(getattr(failure, "traceback", "")))
    return (found[-1]["file"], int(found[-1]["line"])) if found else (None, None)


@check("QR204", Severity.ERROR)
def shared_object(subject: PlanSubject) -> Iterator[Hit]:
    """One quantizer object is given to several slots.

    A module sets on every quantizer which representations it makes. With one object in two slots
    the second setting overwrites the first, and one of the tensors lacks the data that its GEMM
    reads. TransformerEngine does not check it.

    Build a new quantizer in every call of the factory. A cache around a factory, or a quantizer in
    a module-level variable, is the usual cause.
    """
    owners: dict[int, list[Decision]] = defaultdict(list)
    for decision in subject.plan:
        for answer in decision.answers:
            for part in _parts(answer):
                owners[id(part)].append(decision)
    reported: set[int] = set()
    for decisions in owners.values():
        if len(decisions) < 2 or id(decisions[0]) in reported:
            continue
        reported.update(id(decision) for decision in decisions)
        slots = len({id(d) for d in decisions})
        others = "other experts" if slots == 1 else f"{slots - 1} other slots"
        yield _hit(
            decisions[0],
            f"gets the same quantizer object as {others}",
            "build a new quantizer in every call",
        )


def _parts(answer: Any) -> list[Quantizer]:
    """A quantizer and those inside it."""
    if not isinstance(answer, Quantizer):
        return []
    inner = [getattr(answer, option) for option in answer.options]
    return [answer, *(part for part in inner if isinstance(part, Quantizer))]


@check("QR205", Severity.ERROR)
def requests_disagree(subject: PlanSubject) -> Iterator[Hit]:
    """Delayed-scaling requests of one module and direction differ.

    The slots of a module that use delayed scaling share one amax history per direction, so their
    requests must agree in format, margin, history length, algorithms and reduction.
    TransformerEngine raises while it builds the quantizers, and reports the first such request as
    slot 0 wherever it stands.

    Return equal requests for all slots of a module and direction.
    """
    states: dict[tuple[str, str], list[tuple[Decision, DelayedScalingRequest]]] = defaultdict(list)
    for decision in subject.plan:
        for answer in decision.answers:
            if isinstance(answer, DelayedScalingRequest):
                key = (decision.slot.module, decision.slot.direction)
                states[key].append((decision, answer))
    for found in states.values():
        first = found[0][1]
        for decision, request in found[1:]:
            if request != first:
                names = [f.name for f in fields(first) if _differs(f.name, first, request)]
                yield _hit(
                    decision,
                    f"asks for another {', '.join(names)} than {_place(found[0][0])}",
                    "return equal requests for all slots of a module and direction",
                )
                break


def _differs(name: str, one: object, other: object) -> bool:
    return bool(getattr(one, name) != getattr(other, name))


@check("QR206", Severity.WARNING)
def unequal_answers(subject: PlanSubject) -> Iterator[Hit]:
    """Equal roles get different answers.

    The factory counts its calls, draws random numbers, or reads something that changes. Modules are
    rebuilt when a role changes or a checkpoint is loaded, and every rank builds its own: the plan
    that was audited is then not the one that runs.

    Let the answer depend on the role alone. Where the place in the model matters, use a rules file.
    """
    if subject.rules is not None:
        return
    first: dict[object, tuple[Decision, Any]] = {}
    for decision in subject.decisions:
        for answer in subject.answers(decision).kinds:
            slot = decision.slot
            before = first.setdefault((slot.role, slot.direction), (decision, answer))
            if before[1] != answer:
                yield _hit(
                    decision,
                    f"gets {_label(answer)}, {_place(before[0])} got {_label(before[1])} "
                    f"for an equal role",
                    "let the answer depend on the role alone, or use a rules file",
                )
                break


def _label(answer: Any) -> str:
    return answer.label if isinstance(answer, Quantizer) else type(answer).__name__


@check("QR215", Severity.WARNING)
def factory_warned(subject: PlanSubject) -> Iterator[Hit]:
    """The factory, or a recipe that it builds, warned while it answered.

    Warnings of the user's code and of the library are easily lost in a training log.

    Follow the warning, or filter it in the factory where it is expected.
    """
    for text in subject.plan.warnings:
        yield Hit(subject.plan.factory.name, f"warned: {text}", "follow the warning, or filter it")


@check("QR216", Severity.WARNING)
def nothing_quantized(subject: PlanSubject) -> Iterator[Hit]:
    """No slot of the model is quantized.

    Every answer is high precision. A matcher that was dropped for want of a flag, a list of names
    from another model, or a condition that is never true, look like this; the run succeeds and
    measures nothing.

    Check what the factory compares names and types with: `qrole why MODEL SLOT --factory F`.
    """
    formats = [f for d in subject.usable for f in (d.rowwise, d.columnwise) if f is not None]
    if formats and all(f.family == "high_precision" for f in formats):
        if subject.plan.factory.qualname.endswith(".high_precision_factory"):
            return
        yield Hit(
            subject.plan.factory.name,
            "leaves every slot of the model in high precision",
            "`qrole why MODEL SLOT --factory F` shows the conditions that were false",
            "",
            subject.plan.factory.file,
            subject.plan.factory.line,
        )
