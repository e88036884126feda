"""What the page shows, as plain values: one view out of several commands' JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from qrole.auditing.registry import find_code
from qrole.errors import NothingMatchedError, UsageError
from qrole.folding import block_of

__all__ = ["Cell", "View", "build_view"]

_SCHEMA = re.compile(r"^qrole\.(?P<command>\w+)/(?P<version>\d+)$")

#: Metrics of the heat map: name in the JSON, label, whether larger is better.
METRICS: tuple[tuple[str, str, bool], ...] = (
    ("sqnr_db", "SQNR (dB)", True),
    ("rel_err", "relative error", False),
    ("max_abs_err", "largest absolute error", False),
    ("mse", "mean squared error", False),
    ("underflows", "underflows (%)", False),
    ("overflows", "overflows (%)", False),
    ("dynamic_range", "dynamic range (log2)", False),
    ("cur_amax", "amax", False),
    ("cosine", "cosine", True),
)


@dataclass(frozen=True)
class Cell:
    """One measured tensor, product or layer, placed on the map.

    Attributes:
        block: Row of the map: `layers.3`, or the module itself where it is in no stack.
        kind: Column of the map: the module's path within its block.
        module: Full path.
        what: What was measured: `input row-wise`, `fprop`, `layer output`.
        format: Number format.
        values: Metrics by name; those not measured are missing.
    """

    block: str
    kind: str
    module: str
    what: str
    format: str
    values: dict[str, float]


@dataclass(frozen=True)
class View:
    """Everything on the page.

    Attributes:
        title: Name of the model.
        facts: Label and text of the header's lines.
        candidates: Names of the factories compared, in order.
        cells: Measured values per candidate.
        models: Model-level metrics per candidate.
        curves: Loss curves by name, where training was compared.
        slots: The plan: slot id, role, shape, formats.
        formats: Parameters and work per format.
        findings: The audit's findings, equal ones joined, with the explanation of their code.
        sensitivity: Per candidate, groups that were quantized alone and the model's error then.
        metrics: What the map can show: name, label, whether larger is better.
    """

    title: str
    facts: list[tuple[str, str]]
    candidates: list[str] = field(default_factory=list)
    cells: list[list[Cell]] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=list)
    curves: dict[str, list[float]] = field(default_factory=dict)
    slots: list[dict[str, Any]] = field(default_factory=list)
    formats: dict[str, Any] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)
    sensitivity: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    metrics: tuple[tuple[str, str, bool], ...] = METRICS

    def to_json(self) -> dict[str, Any]:
        """JSON values for the page's script."""
        return asdict(self)


def build_view(payloads: Iterable[tuple[str, Any]]) -> View:
    """Puts the JSON of several commands together.

    Args:
        payloads: File name and parsed JSON of each; at most one per command.

    Raises:
        UsageError: A file is no JSON of inspect, audit or compare, of a schema this version reads,
            or two are of one command.
        NothingMatchedError: There is nothing to show.
    """
    found: dict[str, dict[str, Any]] = {}
    names: list[str] = []
    for name, payload in payloads:
        command = _command(name, payload)
        if command in found:
            raise UsageError(
                f"{name} is a second file of `qrole {command}`",
                expected="at most one file per command",
                hint="make one report per comparison; several factories go into one compare",
            )
        found[command] = payload
        names.append(name)
    if not found:
        raise NothingMatchedError(
            "no file was given",
            expected="JSON of qrole inspect, audit or compare",
            hint="write one with `qrole compare … --json > compare.json`",
        )
    try:
        return _view(found)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{', '.join(names)}: something is missing or malformed: {error}",
            expected="whole files, as `qrole inspect|audit|compare --json` printed them",
            hint="write them again with this version",
        ) from error


def _view(found: dict[str, dict[str, Any]]) -> View:
    compare, inspect = found.get("compare", {}), found.get("inspect", {})
    audit = found.get("audit", {})
    candidates = compare.get("candidates", [])
    return View(
        title=str(next(iter(found.values()))["model"]),
        facts=_facts(compare, inspect, audit),
        candidates=[str(c["factory"]) for c in candidates],
        cells=[_cells(c) for c in candidates],
        models=[c["model"] for c in candidates],
        curves=_curves(compare),
        slots=_slots(inspect),
        formats=inspect.get("totals", {}),
        findings=_findings(audit),
        sensitivity=dict(compare.get("sensitivity", {})),
    )


def _command(name: str, payload: Any) -> str:
    schema = payload.get("schema", "") if isinstance(payload, dict) else ""
    match = _SCHEMA.match(str(schema))
    if match is None or match["command"] not in ("inspect", "audit", "compare"):
        raise UsageError(
            f"{name} has the schema {schema!r}",
            expected="qrole.inspect/1, qrole.audit/1 or qrole.compare/1",
            hint="pass what `qrole inspect|audit|compare --json` printed",
        )
    if match["version"] != "1":
        raise UsageError(
            f"{name} has the schema {schema}, which this version of qrole does not read",
            expected="version 1",
            hint="write it again with this version, or update qrole",
        )
    return match["command"]


def _facts(
    compare: dict[str, Any], inspect: dict[str, Any], audit: dict[str, Any]
) -> list[tuple[str, str]]:
    facts = []
    if inspect:
        facts.append(("parameters", f"{inspect['parameters']:,}"))
        facts.append(("slots", f"{sum(s['copies'] for s in inspect['slots']):,}"))
    if inspect.get("factory"):
        facts.append(("factory", str(inspect["factory"]["name"])))
    if compare:
        data = compare.get("data", {})
        facts.append(("reference", str(compare["reference"])))
        shown = {key: str(value)[:12] if key == "sha256" else value for key, value in data.items()}
        facts.append(("data", ", ".join(f"{key} {value}" for key, value in shown.items())))
        facts.append(("seed", str(compare.get("seed", ""))))
    if audit:
        facts.append(("findings", str(len(audit.get("findings", [])))))
    return facts


def place(module: str, group: str = "") -> tuple[str, str]:
    """Row and column of a module on the map: its block, and its path within the block."""
    block, within = block_of(f"{module}.{group}" if group else module)
    return block or ".", within or "(no block)"


def _cells(candidate: dict[str, Any]) -> list[Cell]:
    return [
        *(_cell(s, f"{s['operand']} {_usage(s)}", s["format"]) for s in candidate["slots"]),
        *(_cell(g, str(g["gemm"]), "") for g in candidate["gemms"]),
        *(_cell(la, "layer output", la["formats"]) for la in candidate["layers"]),
    ]


def _usage(slot: dict[str, Any]) -> str:
    return "row-wise" if slot["usage"] == "rowwise" else "column-wise"


def _cell(measured: dict[str, Any], what: str, number_format: str) -> Cell:
    block, kind = place(measured["module"], measured.get("group", ""))
    values = {
        name: float(measured[name])
        for name, _, _ in METRICS
        if measured.get(name) is not None and _finite(measured[name])
    }
    return Cell(block, kind, measured["module"], what, number_format, values)


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float))


def _findings(audit: dict[str, Any]) -> list[dict[str, Any]]:
    """Findings of one code, message and remedy as one, with everything they are about."""
    joined: dict[tuple[str, ...], dict[str, Any]] = {}
    for found in audit.get("findings", []):
        key = tuple(str(found.get(name)) for name in ("code", "severity", "message", "to_do"))
        if key not in joined:
            explanation = find_code(str(found["code"])).explanation
            joined[key] = {**found, "where": [], "explanation": explanation}
        joined[key]["where"].append(str(found.get("where") or ""))
    return list(joined.values())


def _curves(compare: dict[str, Any]) -> dict[str, list[float]]:
    training: Sequence[dict[str, Any]] = compare.get("training", [])
    return {str(run["name"]): [float(x) for x in run["losses"]] for run in training}


def _slots(inspect: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "id": slot["id"],
            "role": "|".join(v for v in (slot["role"] or {}).values() if v) or "None",
            "class": slot["module_class"].rpartition(".")[2],
            "shape": "x".join(map(str, slot["shape"] or ())),
            "copies": slot["copies"],
            "reads": " ".join(slot["reads"]) or "nothing",
            "label": slot.get("label", ""),
        }
        for slot in inspect.get("slots", [])
    ]
