"""Parts of a plan: only some modules quantized, or one role, module or GEMM at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from qrole.errors import NothingMatchedError, UsageError
from qrole.plans import Decision, Plan
from qrole.quantizers import HybridQuantizer, IdentityQuantizer, Quantizer
from qrole.roles import Gemm, Usage

__all__ = ["GROUPINGS", "check_grouping", "groups_of", "only_modules"]

GROUPINGS = ("role", "module", "gemm")


def only_modules(plan: Plan, globs: Sequence[str]) -> Plan:
    """The plan with all modules in high precision whose path or role name no glob matches.

    Raises:
        NothingMatchedError: A glob matches no module.
    """

    def names(decision: Decision) -> tuple[str, str]:
        return decision.slot.module, decision.slot.te_name

    for glob in globs:
        if not any(fnmatchcase(name, glob) for d in plan for name in names(d)):
            raise NothingMatchedError(
                f"--only {glob!r} matches no module of {plan.inventory.model}",
                expected="a glob over module paths, such as 'layers.3.*'",
                hint="`qrole inspect` lists the paths",
            )
    return _keeping(
        plan, lambda d: any(fnmatchcase(name, glob) for name in names(d) for glob in globs)
    )


def check_grouping(grouping: str) -> None:
    """Raises UsageError where there is no such grouping; needs no plan."""
    if grouping not in GROUPINGS:
        raise UsageError(
            f"there is no grouping {grouping!r}",
            expected=f"one of {', '.join(GROUPINGS)}",
            hint="name one of them",
        )


def groups_of(plan: Plan, grouping: str) -> Iterator[tuple[str, Plan]]:
    """Each group's name, and the plan that quantizes this group only.

    Args:
        plan: The whole plan.
        grouping: `role` (`module_type/tensor_type`), `module` or `gemm`.

    Raises:
        UsageError: There is no such grouping, or the plan cannot be taken apart that way.
    """
    if grouping == "gemm":
        for gemm in Gemm:
            yield gemm.value, _only_gemm(plan, gemm)
        return
    check_grouping(grouping)
    name = _role_of if grouping == "role" else _module_of
    quantized = [decision for decision in plan if _quantizes(decision)]
    for group in dict.fromkeys(map(name, quantized)):
        members = {decision.slot.id for decision in quantized if name(decision) == group}
        yield group, _keeping(plan, lambda d, members=members: d.slot.id in members)  # type: ignore[misc]


def _quantizes(decision: Decision) -> bool:
    formats = (decision.rowwise, decision.columnwise)
    return decision.slot.consumed and any(
        form is not None and form.family != "high_precision" for form in formats
    )


def _role_of(decision: Decision) -> str:
    role = decision.slot.role
    return f"{role.module_type}/{role.tensor_type}" if role is not None else "no role"


def _module_of(decision: Decision) -> str:
    return ".".join(part for part in (decision.slot.module, decision.slot.group) if part) or "."


def _keeping(plan: Plan, keep: Callable[[Decision], bool]) -> Plan:
    return replace(plan, decisions=tuple(d if keep(d) else _plain(d) for d in plan))


def _plain(decision: Decision) -> Decision:
    return replace(decision, answers=tuple(IdentityQuantizer() for _ in decision.answers))


def _only_gemm(plan: Plan, gemm: Gemm) -> Plan:
    """The plan with only those representations quantized that one GEMM reads."""

    def part(decision: Decision) -> Decision:
        read = next((r.usage for r in decision.slot.reads if r.gemm is gemm), None)
        if read is None or not _quantizes(decision):
            return _plain(decision)
        return replace(decision, answers=tuple(_half(a, read) for a in decision.answers))

    return replace(plan, decisions=tuple(map(part, plan)))


def _half(answer: Any, usage: Usage) -> Quantizer:
    """A quantizer whose other representation stays in high precision.

    Column-wise data is made from the original tensor, whatever its source is in the whole plan.
    """
    if not isinstance(answer, Quantizer):
        raise UsageError(
            "the plan asks for delayed scaling, whose two representations are one quantization",
            expected="quantizers that can be used for one GEMM alone",
            hint="use --one-at-a-time role or module",
        )
    rest, rowwise, columnwise = IdentityQuantizer(), answer, answer
    if isinstance(answer, HybridQuantizer):
        rowwise, columnwise = answer.rowwise_quantizer, answer.columnwise_quantizer
    if usage is Usage.ROWWISE:
        return HybridQuantizer(rowwise_quantizer=rowwise.copy(), columnwise_quantizer=rest)
    return HybridQuantizer(rowwise_quantizer=rest, columnwise_quantizer=columnwise.copy())
