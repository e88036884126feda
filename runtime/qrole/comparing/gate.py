"""The outcome of a gate, for people and for CI systems."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from qrole.comparing.baseline import check_baseline
from qrole.comparing.budgets import Budget, Violation, check_budgets
from qrole.comparing.report import CandidateReport, Report
from qrole.errors import CheckpointError
from qrole.json_values import plain

__all__ = ["Gate", "judge", "write_text"]


@dataclass(frozen=True)
class Gate:
    """What was judged, and what broke.

    Attributes:
        report: The comparison.
        judged: The limits, as text; empty where nothing was asked for.
        violations: What broke, worst first; NaN and infinity break a gate without limits too.
    """

    report: Report
    judged: tuple[str, ...]
    violations: tuple[Violation, ...]

    @property
    def passed(self) -> bool | None:
        """None where nothing was judged and nothing broke."""
        if self.violations:
            return False
        return True if self.judged else None

    def to_json(self) -> dict[str, Any]:
        """JSON values: the report's, and `gate`."""
        violations = [
            {
                "candidate": v.candidate,
                "where": v.where,
                "metric": v.metric,
                "value": plain(v.value),
                "limit": v.limit,
                "text": str(v),
            }
            for v in self.violations
        ]
        gate = {"passed": self.passed, "judged": list(self.judged), "violations": violations}
        return {**self.report.to_json(), "gate": gate}

    def junit(self) -> str:
        """JUnit XML: one test case per candidate and limit, and one for finite numbers."""
        broken: dict[tuple[str, str], list[str]] = defaultdict(list)
        for v in self.violations:
            broken[(v.candidate, self._case_of(v))].append(str(v))
        cases = [(c.factory, limit) for c in self.report.candidates for limit in self._cases()]
        suite = ET.Element(
            "testsuite", name="qrole compare", tests=str(len(cases)), failures=str(len(broken))
        )
        for candidate, limit in cases:
            case = ET.SubElement(
                suite, "testcase", classname=f"{self.report.model}.{candidate}", name=limit
            )
            found = broken.get((candidate, limit))
            if found:
                ET.SubElement(case, "failure", message=found[0]).text = "\n".join(found)
        ET.indent(suite)
        return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"

    def _repr_html_(self) -> str:
        from qrole.display import gate_html

        return gate_html(self)

    def _cases(self) -> tuple[str, ...]:
        return ("finite", *self.judged)

    def _case_of(self, violation: Violation) -> str:
        return violation.limit if violation.limit in self._cases() else "baseline"

    def annotations(self, most: int) -> list[str]:
        """GitHub workflow commands, one per violation."""
        return [f"::error title=qrole compare::{_escaped(str(v))}" for v in self.violations[:most]]

    def summary(self, most: int) -> str:
        """Markdown for a GitHub step summary."""
        word = {True: "passed", False: "failed", None: "nothing judged"}[self.passed]
        data = self.report.data
        lines = [
            f"### qrole compare: {word}",
            "",
            f"`{self.report.model}` against {self.report.reference}, "
            f"{data['samples']} samples of {data['source']}",
            "",
            *_table(self.report.candidates),
        ]
        if self.violations:
            lines += ["", "| broken, worst first |", "| --- |"]
            lines += [f"| {str(v).replace('|', chr(92) + '|')} |" for v in self.violations[:most]]
            rest = len(self.violations) - most
            if rest > 0:
                lines.append(f"| and {rest} more |")
        return "\n".join(lines) + "\n"


def _table(candidates: Sequence[CandidateReport]) -> list[str]:
    rows = [
        "| factory | output dB | KL | top-1 | gradient cosine |",
        "| --- | --: | --: | --: | --: |",
    ]
    for candidate in candidates:
        m = candidate.model
        values = (
            (m.sqnr_db, ".1f"),
            (m.kl, ".4g"),
            (m.top1_agreement, ".1%"),
            (m.grad_cosine, ".5f"),
        )
        cells = ("" if value is None else format(value, form) for value, form in values)
        rows.append(f"| {candidate.factory} | {' | '.join(cells)} |")
    return rows


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def judge(
    report: Report,
    budgets: tuple[Budget, ...] = (),
    baseline: dict[str, Any] | None = None,
    *,
    tolerance: float = 0.05,
) -> Gate:
    """Holds a report to budgets and to a baseline.

    Args:
        report: The report.
        budgets: What `load_budgets` gave.
        baseline: What `load_baseline` gave.
        tolerance: Relative growth of an error against the baseline that is let pass.

    Raises:
        NothingMatchedError: A budget matches nothing, or the baseline has no common candidate.
        UsageError: The baseline was made of something else.
    """
    found = check_budgets(report, budgets)
    judged = tuple(str(budget) for budget in budgets)
    if baseline is not None:
        found += check_baseline(report, baseline, tolerance=tolerance)
        judged += ("baseline",)
    found.sort(key=lambda v: (-v.excess, v.candidate, v.where, v.metric))
    return Gate(report, judged, tuple(found))


def write_text(path: Path, text: str, *, append: bool = False) -> None:
    """Writes a file of a gate's outcome.

    Raises:
        CheckpointError: It cannot be written.
    """
    try:
        with path.open("a" if append else "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror}",
            expected="a path in a directory that exists and is writable",
            hint="create the directory, or choose another path",
        ) from error
