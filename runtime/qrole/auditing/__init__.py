"""Finding what is wrong with a plan before a GPU is booked. Importing it imports no torch."""

from qrole.auditing.findings import AuditReport, Finding, FindingGroup, group_findings
from qrole.auditing.options import AuditOptions, Engine
from qrole.auditing.registry import Code, Hit, Severity, codes, documentation, find_code
from qrole.auditing.run import audit_checkpoint, audit_model
from qrole.auditing.settings import load_settings

__all__ = [
    "AuditOptions",
    "AuditReport",
    "Code",
    "Engine",
    "Finding",
    "FindingGroup",
    "Hit",
    "Severity",
    "audit_checkpoint",
    "audit_model",
    "codes",
    "documentation",
    "find_code",
    "group_findings",
    "load_settings",
]
