"""Findings as SARIF 2.1.0, the format of code-scanning tools."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

from qrole._version import __version__
from qrole.auditing.findings import AuditReport, FindingGroup, group_findings
from qrole.auditing.output.github import listed, relative
from qrole.auditing.registry import Code, codes

__all__ = ["sarif_log"]

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_log(report: AuditReport, root: Path | None = None) -> dict[str, Any]:
    """The report as one SARIF run; equal findings are one result with many logical locations.

    Args:
        report: The audit's report.
        root: Files are named relative to it; default: the current directory.
    """
    groups = group_findings(report.findings)
    names = sorted({group.code.name for group in groups})
    known = codes()
    index = {name: i for i, name in enumerate(names)}
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "qrole",
                        "semanticVersion": __version__,
                        "rules": [_rule(known[name]) for name in names],
                    }
                },
                "invocations": [{"executionSuccessful": True}],
                "results": [_result(group, index, root or Path.cwd()) for group in groups],
                "columnKind": "unicodeCodePoints",
                "properties": {"model": report.model, "factory": report.factory},
            }
        ],
    }


def _rule(code: Code) -> dict[str, Any]:
    return {
        "id": code.name,
        "shortDescription": {"text": code.summary},
        "fullDescription": {"text": code.explanation},
        "help": {"text": code.explanation},
        "defaultConfiguration": {"level": str(code.severity)},
        "properties": {"tags": [code.family]},
    }


def _result(group: FindingGroup, index: dict[str, int], root: Path) -> dict[str, Any]:
    return {
        "ruleId": group.code.name,
        "ruleIndex": index[group.code.name],
        "level": str(group.code.severity),
        "message": {"text": f"{listed(group)}: {group.hit.message}. To do: {group.hit.to_do}."},
        "locations": [_location(group, root)],
        "occurrenceCount": group.count,
        "partialFingerprints": {"qrole/v1": _fingerprint(group)},
    }


def _location(group: FindingGroup, root: Path) -> dict[str, Any]:
    location: dict[str, Any] = {
        "logicalLocations": [
            {"fullyQualifiedName": place.path, "kind": "module"} for place in group.places
        ]
    }
    if group.hit.file is not None:
        uri = relative(group.hit.file, root)
        physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(uri)}}
        if group.hit.line is not None:
            physical["region"] = {"startLine": group.hit.line}
        location["physicalLocation"] = physical
    return location


def _uri(path: str) -> str:
    """A URI reference: relative paths as they are, absolute ones as `file:` URIs."""
    quoted = quote(path)
    return f"file://{quoted}" if path.startswith("/") else quoted


def _fingerprint(group: FindingGroup) -> str:
    """Equal for the same finding in another commit: no line numbers, no paths of the machine."""
    places = "\n".join(place.path for place in group.places if ":" not in place.path)
    text = f"{group.code.name}\n{group.hit.message}\n{places}"
    return hashlib.sha256(text.encode()).hexdigest()
