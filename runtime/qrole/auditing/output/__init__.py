"""An audit's findings in the formats that other programs read."""

from qrole.auditing.output.github import github_annotations
from qrole.auditing.output.payload import report_payload
from qrole.auditing.output.sarif import sarif_log

__all__ = ["github_annotations", "report_payload", "sarif_log"]
