"""Findings as JSON; the schema's number changes when a key changes its meaning."""

from __future__ import annotations

from typing import Any

from qrole.auditing.findings import AuditReport, Finding

__all__ = ["report_payload"]


def report_payload(report: AuditReport) -> dict[str, Any]:
    """The report as JSON values, schema `qrole.audit/1`."""
    return {
        "schema": "qrole.audit/1",
        "model": report.model,
        "factory": report.factory or None,
        "slots": report.slots,
        "checks": report.checks,
        "counts": {str(severity): n for severity, n in report.counts().items()},
        "findings": [_finding(finding) for finding in report.findings],
        "notes": list(report.notes),
        "readings": {reader: dict(found) for reader, found in report.readings.items()},
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code.name,
        "severity": str(finding.code.severity),
        "meaning": finding.code.summary,
        "where": finding.hit.where,
        "module": finding.hit.module or None,
        "message": finding.hit.text,
        "to_do": finding.hit.to_do,
        "file": finding.hit.file,
        "line": finding.hit.line,
    }
