"""Totals of a plan: parameters, bytes and multiply-adds per format."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from qrole.plans import Decision, Plan
from qrole.quantizers.base import OperandFormat
from qrole.roles import Gemm

__all__ = ["FormatTotal", "GemmTotal", "PlanSummary", "summarize"]

_HIGH_PRECISION = OperandFormat("high_precision")


@dataclass(frozen=True)
class FormatTotal:
    """What one format holds of a model's parameters.

    Attributes:
        label: The format, or `not covered`.
        tensors: Number of weight tensors, experts counted one by one.
        numel: Their elements.
        nbytes: Their size when stored in the format, block scales included; high precision and what
            is not covered are counted as 16-bit.
    """

    label: str
    tensors: int
    numel: int
    nbytes: int


@dataclass(frozen=True)
class GemmTotal:
    """What one pair of operand formats does of one GEMM's work.

    Attributes:
        gemm: fprop, dgrad or wgrad.
        operands: Labels of the two operands' formats, in the order of `GEMM_OPERANDS`.
        macs: Multiply-adds per token; of experts, all of them are counted.
    """

    gemm: Gemm
    operands: tuple[str, str]
    macs: int


@dataclass(frozen=True)
class PlanSummary:
    """Totals of a plan.

    Attributes:
        formats: Parameters per format, largest first; what no slot quantizes comes last.
        gemms: Work per GEMM and operand pair, largest first within a GEMM.
    """

    formats: tuple[FormatTotal, ...]
    gemms: tuple[GemmTotal, ...]


#: The two operands of each GEMM as (operand, usage), result-rows operand first.
GEMM_OPERANDS: dict[Gemm, tuple[tuple[str, str], tuple[str, str]]] = {
    Gemm.FPROP: (("input", "rowwise"), ("weight", "rowwise")),
    Gemm.DGRAD: (("grad_output", "rowwise"), ("weight", "columnwise")),
    Gemm.WGRAD: (("grad_output", "columnwise"), ("input", "columnwise")),
}


def summarize(plan: Plan) -> PlanSummary:
    """Totals of a plan, from shapes alone; tied weights count once."""
    formats: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    twin = {name: group[0] for group in plan.inventory.tied for name in group}
    counted: set[str] = set()
    for decision in plan:
        slot = decision.slot
        names = {twin.get(name, name) for name in slot.parameters}
        known = slot.operand == "weight" and slot.shape is not None and slot.consumed
        if not known or (names and names <= counted):
            continue
        counted |= names
        numel = math.prod(slot.shape or ()) * slot.copies
        stored = decision.rowwise or _HIGH_PRECISION
        total = formats[stored.label if not decision.error else "error"]
        total[0] += slot.copies
        total[1] += numel
        total[2] += math.ceil(numel * stored.bits_per_element / 8)
    rows = [FormatTotal(label, *total) for label, total in formats.items()]
    rows.sort(key=lambda row: -row.numel)
    uncovered = plan.inventory.uncovered
    if uncovered:
        numel = sum(u.numel for u in uncovered)
        tensors = sum(len(u.parameters) for u in uncovered)
        rows.append(FormatTotal("not covered", tensors, numel, 2 * numel))
    return PlanSummary(tuple(rows), tuple(_gemms(plan)))


def _gemms(plan: Plan) -> list[GemmTotal]:
    macs: dict[tuple[Gemm, tuple[str, str]], int] = defaultdict(int)
    for layer in plan.layers.values():
        weight = layer.get("weight")
        if weight is None or weight.slot.shape is None:
            continue
        work = math.prod(weight.slot.shape) * weight.slot.copies
        for gemm, operands in GEMM_OPERANDS.items():
            if all(operand in layer for operand, _ in operands):
                first, second = (_label(layer[operand], usage) for operand, usage in operands)
                macs[gemm, (first, second)] += work
    totals = [GemmTotal(gemm, pair, work) for (gemm, pair), work in macs.items()]
    order = list(Gemm)
    return sorted(totals, key=lambda t: (order.index(t.gemm), -t.macs))


def _label(decision: Decision, usage: str) -> str:
    found = decision.rowwise if usage == "rowwise" else decision.columnwise
    return found.label if found is not None else "error"
