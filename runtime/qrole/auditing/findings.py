"""Findings, and what a whole audit found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from qrole.auditing.registry import Code, Hit, Severity
from qrole.places import summarize_places

__all__ = ["AuditReport", "Finding", "FindingGroup", "Place", "group_findings"]

_RANK = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


@dataclass(frozen=True)
class Finding:
    """One hit of one code.

    Attributes:
        code: The code.
        hit: Where, what, and what to do.
    """

    code: Code
    hit: Hit


@dataclass(frozen=True)
class Place:
    """Where findings of a group are.

    Attributes:
        path: Runs of equal layers folded.
        count: Number of findings there.
        detail: What is particular to them; `""` for nothing.
    """

    path: str
    count: int
    detail: str = ""

    def __str__(self) -> str:
        times = f" ({self.count})" if self.count > 1 else ""
        return f"{self.path}{times}{': ' if self.detail else ''}{self.detail}"


@dataclass(frozen=True)
class FindingGroup:
    """Findings of one code that say the same of different places.

    Attributes:
        code: The code.
        hit: The first of them.
        places: Their places.
        count: Number of findings.
    """

    code: Code
    hit: Hit
    places: tuple[Place, ...]
    count: int


@dataclass(frozen=True)
class AuditReport:
    """What an audit found.

    Attributes:
        model: How the model was named.
        factory: How the factory was named; `""` where a written checkpoint was audited.
        findings: Worst first, then by code, in the order of the model.
        notes: What the user should know of the audit itself, in sentences.
        slots: Slots that were looked at, experts counted one by one.
        checks: Number of codes that were checked.
        readings: For a written checkpoint, what is `stored` and what every engine reads, by module
            in each; empty for a plan.
    """

    model: str
    factory: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    slots: int
    checks: int
    readings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def counts(self) -> dict[Severity, int]:
        """Number of findings per severity, all severities named."""
        found = Counter(finding.code.severity for finding in self.findings)
        return {severity: found[severity] for severity in Severity}

    def failed(self) -> bool:
        """Whether there is an error or a warning."""
        counts = self.counts()
        return bool(counts[Severity.ERROR] or counts[Severity.WARNING])

    def _repr_html_(self) -> str:
        from qrole.display import audit_html

        return audit_html(self)


def worst_first(finding: Finding) -> tuple[int, str]:
    """Sort key: severity, then code; the order of the model is kept among equals."""
    return (_RANK[finding.code.severity], finding.code.name)


def group_findings(findings: tuple[Finding, ...]) -> list[FindingGroup]:
    """Findings that say the same together, in the order of their first ones."""
    groups: dict[tuple[str, str, str, str | None, int | None], list[Finding]] = {}
    for finding in findings:
        hit = finding.hit
        key = (finding.code.name, hit.message, hit.to_do, hit.file, hit.line)
        groups.setdefault(key, []).append(finding)
    return [
        FindingGroup(
            found[0].code,
            found[0].hit,
            _places(found),
            len(found),
        )
        for found in groups.values()
    ]


def _places(findings: list[Finding]) -> tuple[Place, ...]:
    alike: dict[str, list[str]] = {}
    for finding in findings:
        alike.setdefault(finding.hit.detail, []).append(finding.hit.where)
    return tuple(
        Place(path, count, detail)
        for detail, paths in alike.items()
        for path, count in summarize_places(paths)
    )
