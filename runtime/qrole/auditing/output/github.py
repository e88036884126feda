"""Findings as annotations of GitHub's workflow commands."""

from __future__ import annotations

from pathlib import Path

from qrole.auditing.findings import AuditReport, FindingGroup, group_findings
from qrole.auditing.registry import Severity

__all__ = ["github_annotations", "listed", "relative"]

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def github_annotations(report: AuditReport, root: Path | None = None) -> list[str]:
    """One line per group of equal findings, worst first.

    Args:
        report: The audit's report.
        root: Files are named relative to it; default: the current directory.
    """
    return [_annotation(group, root or Path.cwd()) for group in group_findings(report.findings)]


def _annotation(group: FindingGroup, root: Path) -> str:
    properties = []
    if group.hit.file is not None:
        properties.append(f"file={_property(relative(group.hit.file, root))}")
        if group.hit.line is not None:
            properties.append(f"line={group.hit.line}")
    properties.append(f"title={_property(f'{group.code.name} {group.code.summary}')}")
    text = f"{listed(group)}: {group.hit.message}\nto do: {group.hit.to_do}"
    return f"::{_LEVELS[group.code.severity]} {','.join(properties)}::{_data(text)}"


def listed(group: FindingGroup, limit: int = 5) -> str:
    """The places of a group in one line."""
    shown = [str(place) for place in group.places[:limit]]
    more = len(group.places) - limit
    comma = "; " if any(place.detail for place in group.places) else ", "
    return comma.join(shown) + (f" and {more} more" if more > 0 else "")


def relative(file: str, root: Path) -> str:
    """A file relative to a folder, where it lies in it."""
    path = Path(file)
    base = root.resolve()
    absolute = path if path.is_absolute() else base / path
    return absolute.relative_to(base).as_posix() if absolute.is_relative_to(base) else file


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
