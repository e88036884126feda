"""Results as HTML for notebooks.

A page's own colours are kept, light or dark, and nothing is loaded from anywhere. What is left out
to stay small is counted in a line.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from qrole.folding import fold
from qrole.rows import (
    LAYER_COLUMNS,
    MODEL_COLUMNS,
    POINT_COLUMNS,
    counted,
    inventory_size,
    layer_rows,
    model_row,
    number,
    point_row,
    sensitivity_row,
)
from qrole.summary import summarize

if TYPE_CHECKING:
    from qrole.auditing import AuditReport
    from qrole.checkpoint.apply import ApplyReport
    from qrole.checkpoint.verification.report import VerifyReport
    from qrole.comparing import Gate, Report
    from qrole.plans import Inventory, Plan
    from qrole.roles import Slot
    from qrole.searching import SearchResult

__all__ = [
    "apply_html",
    "audit_html",
    "gate_html",
    "inventory_html",
    "plan_html",
    "report_html",
    "search_html",
    "verify_html",
]

ROWS = 30
_WORST = 10
_LINES = 8
_TEXT = 200
_RULE = "border-bottom:1px solid rgba(128,128,128,.35);padding:2px 10px;vertical-align:top"


def inventory_html(inventory: Inventory) -> str:
    """The layers of a model with the slots of each, equal ones as one row."""
    layers: dict[str, list[Slot]] = {}
    for slot in inventory.slots:
        layers.setdefault(_layer(slot.module, slot.group), []).append(slot)
    found = {path: _slot_cells(slots) for path, slots in layers.items()}
    rows = [[path, count, *cells] for path, count, cells in _folded(found)]
    return _block(
        f"{inventory.model}: {inventory_size(inventory)}",
        _table(("layer", "count", "class", "slots", "weight", "experts"), rows, "layers"),
        _lines([*_uncovered(inventory), *inventory.notes]),
    )


def plan_html(plan: Plan) -> str:
    """What each tensor of each layer gets, and the totals of the weights."""
    operands = list(dict.fromkeys(o for layer in plan.layers.values() for o in layer))
    found = {
        _layer(*key): [layer[o].label if o in layer else "" for o in operands]
        for key, layer in plan.layers.items()
    }
    rows = [[path, count, *cells] for path, count, cells in _folded(found)]
    totals = [
        [total.label, f"{total.tensors:,}", f"{total.numel:,}", f"{total.nbytes:,}"]
        for total in summarize(plan).formats
    ]
    return _block(
        f"{plan.inventory.model} with {plan.factory.name}",
        _table(("layer", "count", *operands), rows, "layers"),
        _table(("weights in", "tensors", "parameters", "bytes"), totals, "formats"),
        _lines([*_uncovered(plan.inventory), *plan.inventory.notes, *plan.warnings]),
    )


def audit_html(report: AuditReport) -> str:
    """Findings, worst first, those that say the same as one row."""
    from qrole.auditing import group_findings

    rows = [
        [
            group.code.name,
            str(group.code.severity),
            ", ".join(str(place) for place in group.places[:3])
            + (f" and {len(group.places) - 3} more places" if len(group.places) > 3 else ""),
            str(group.count),
            group.hit.message,
            group.hit.to_do,
        ]
        for group in group_findings(report.findings)
    ]
    counts = ", ".join(counted(n, severity) for severity, n in report.counts().items())
    what = f"{report.model} with {report.factory}" if report.factory else report.model
    return _block(
        f"{what}: {counts}; {report.checks} codes checked",
        _table(("code", "severity", "where", "count", "what", "to do"), rows, "kinds of findings"),
        _lines(report.notes),
    )


def report_html(report: Report) -> str:
    """The candidates, and of a single one the worst layers; what was also asked for."""
    parts = [_table(MODEL_COLUMNS, list(map(model_row, report.candidates)), "candidates")]
    if len(report.candidates) == 1:
        rows = layer_rows(report.candidates[0])
        parts.append(_table(LAYER_COLUMNS, rows, "layers, all better", _WORST))
    for factory, groups in report.sensitivity.items():
        columns = (f"{factory}, alone", "KL", "output err", "grad err")
        rows = list(map(sensitivity_row, groups))
        parts.append(_table(columns, rows, "groups, all better", _WORST))
    training = [
        [run.name, *(number(x, ".5f") for x in (run.losses[0], run.losses[-1]))]
        for run in report.training
    ]
    parts.append(_table(("training", "first loss", "last loss"), training, "runs"))
    data = report.data
    return _block(
        f"{report.model} against {report.reference}, "
        f"{counted(data['samples'], 'sample')} of {data['source']}",
        *parts,
    )


def gate_html(gate: Gate) -> str:
    """What was judged and what broke, and the report."""
    word = {True: "passed", False: "failed", None: "nothing judged"}[gate.passed]
    broken = [[violation.candidate, str(violation)] for violation in gate.violations]
    return _block(
        f"{word}: {counted(len(gate.judged), 'limit')}, {counted(len(broken), 'violation')}",
        _table(("candidate", "broken"), broken, "violations"),
        report_html(gate.report),
    )


def apply_html(report: ApplyReport) -> str:
    """What was written, and which engine loads it."""
    schemes = [[name, f"{count:,}"] for name, count in report.schemes.items()]
    engines = [[v.engine, v.level.value, "; ".join(v.reasons)] for v in report.verdicts]
    return _block(
        f"{report.output}: {report.source_bytes:,} bytes became {report.output_bytes:,}",
        _table(("scheme", "layers"), schemes, "schemes"),
        _table(("engine", "verdict", "why"), engines, "engines"),
        _lines(report.notes),
    )


def verify_html(report: VerifyReport) -> str:
    """What is wrong, and the layers that are farthest from their source."""
    worst = sorted(report.errors, key=lambda error: error.sqnr_db)
    errors = [
        [e.module, e.scheme, number(e.sqnr_db, ".1f"), number(e.max_abs_err, ".3g")] for e in worst
    ]
    problems = [[p.kind, p.where, p.message] for p in report.problems]
    word = "sound" if report.ok else counted(len(problems), "problem")
    return _block(
        f"{report.directory}: {word}, {report.tensors:,} tensors in {report.layout}",
        _table(("problem", "where", "what"), problems, "problems"),
        _table(("layer", "scheme", "SQNR dB", "max abs err"), errors, "layers, all better", _WORST),
    )


def search_html(result: SearchResult) -> str:
    """The choice beside its baselines, and its rules file."""
    rows = [point_row(point) for point in (result.found, *result.baselines)]
    kept = [f"{why}: {', '.join(names)}" for why, names in result.kept.items()]
    left_out = [
        f"left out for {counted(count, 'unit')}: {why}" for why, count in result.left_out.items()
    ]
    return _block(
        f"{result.model}: {result.found.bits:.3f} bits per weight, least {result.metric}",
        _table(POINT_COLUMNS, rows, "choices"),
        _lines([*kept, *left_out]),
        _text(result.rules, 2 * ROWS),
    )


def _layer(module: str, group: str) -> str:
    return ".".join(part for part in (module, group) if part) or "."


def _slot_cells(slots: Sequence[Slot]) -> list[str]:
    weight = next((slot for slot in slots if slot.shape is not None), None)
    copies = max(slot.copies for slot in slots)
    return [
        slots[0].module_class.rpartition(".")[2],
        ", ".join(slot.operand or "unnamed" for slot in slots),
        "x".join(map(str, weight.shape)) if weight is not None and weight.shape else "",
        str(copies) if copies > 1 else "",
    ]


def _folded(cells: Mapping[str, list[str]]) -> list[tuple[str, str, list[str]]]:
    """Path, number and cells of runs of layers whose cells are equal."""
    groups = fold(cells, lambda path: path, lambda path: tuple(cells[path]))
    return [(g.path, f"{len(g.items):,}", cells[g.items[0]]) for g in groups]


def _uncovered(inventory: Inventory) -> list[str]:
    by_reason: dict[str, int] = {}
    for found in inventory.uncovered:
        by_reason[found.reason] = by_reason.get(found.reason, 0) + found.numel
    return [f"not covered: {reason}: {numel:,} parameters" for reason, numel in by_reason.items()]


def _block(title: str, *parts: str) -> str:
    return f"<div><strong>{html.escape(_cut(title))}</strong>{''.join(parts)}</div>"


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], what: str, most: int = ROWS
) -> str:
    """A table of at most `most` rows, numbers to the right, empty columns left out."""
    if not rows:
        return ""
    filled = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    columns, rows = [columns[i] for i in filled], [[row[i] for i in filled] for row in rows]
    numeric = [all(_isnumber(row[i]) for row in rows) for i in range(len(columns))]
    head = "".join(
        f'<th scope="col" style="{_RULE};text-align:{_side(right)}">{html.escape(name)}</th>'
        for name, right in zip(columns, numeric, strict=True)
    )
    lines = [
        "".join(
            f'<td style="{_RULE};text-align:{_side(right)}">{html.escape(_cut(cell))}</td>'
            for cell, right in zip(row, numeric, strict=True)
        )
        for row in rows[:most]
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    table = (
        f'<table style="border-collapse:collapse;margin:6px 0"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
    return table + _rest(len(rows) - most, what)


def _lines(texts: Iterable[str]) -> str:
    found = list(texts)
    shown = "".join(f"<div>{html.escape(_cut(text))}</div>" for text in found[:_LINES])
    return shown + _rest(len(found) - _LINES, "notes")


def _text(text: str, most: int) -> str:
    lines = text.splitlines()
    shown = html.escape("\n".join(map(_cut, lines[:most])))
    return f'<pre style="margin:6px 0;white-space:pre-wrap">{shown}</pre>' + _rest(
        len(lines) - most, "lines"
    )


def _rest(count: int, what: str) -> str:
    return f"<div><em>and {count:,} more {what}</em></div>" if count > 0 else ""


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"


def _side(right: bool) -> str:
    return "right" if right else "left"


def _isnumber(text: str) -> bool:
    """Whether a cell holds a number, or nothing."""
    try:
        float(text.replace(",", "").removesuffix("%") or 0)
    except ValueError:
        return False
    return True
