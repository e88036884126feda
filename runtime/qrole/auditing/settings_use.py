"""QR0xx: settings of the audit itself that have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qrole.auditing.findings import Finding
from qrole.auditing.options import AuditOptions, expand_codes
from qrole.auditing.registry import Hit, Severity, check
from qrole.factories.patterns import NamePattern

__all__ = ["SettingsSubject", "ignored"]


@dataclass(frozen=True)
class SettingsSubject:
    """What was asked of an audit, and everything that its checks found.

    Attributes:
        options: What was asked.
        findings: All findings, those that are ignored included.
        checked: Names of the codes that were checked.
    """

    options: AuditOptions
    findings: tuple[Finding, ...]
    checked: frozenset[str]


def ignored(finding: Finding, options: AuditOptions) -> bool:
    """Whether the options leave a finding out."""
    name = finding.code.name
    if name in expand_codes(options.ignore):
        return True
    return any(
        name in expand_codes(names) and NamePattern(pattern).matches(finding.hit.module)
        for pattern, names in options.module_ignores.items()
    )


@check("QR001", Severity.WARNING)
def unused_ignore(subject: SettingsSubject) -> Iterator[Hit]:
    """An ignored code was not found, so that ignoring it has no effect.

    The mistake that it was written for is gone, or the module it names is. An ignore that stays
    will hide the next one.

    Remove it from the command line or from `[tool.qrole]`.
    """
    options = subject.options
    for name in options.ignore:
        if not _used(subject, name, None):
            yield _hit(options, f"ignore {name}", "left nothing out")
    for pattern, names in options.module_ignores.items():
        for name in names:
            if not _used(subject, name, NamePattern(pattern)):
                yield _hit(options, f"module-ignore {pattern!r} {name}", "left nothing out")


def _used(subject: SettingsSubject, name: str, pattern: NamePattern | None) -> bool:
    """Whether an entry left something out, or is about codes that were not checked."""
    names = expand_codes([name])
    if not names & subject.checked:
        return True
    return any(
        finding.code.name in names and (pattern is None or pattern.matches(finding.hit.module))
        for finding in subject.findings
    )


def _hit(options: AuditOptions, where: str, message: str) -> Hit:
    line = 1 if options.settings_file else None
    return Hit(where, message, "remove the entry", "", options.settings_file, line)
