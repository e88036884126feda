"""An audit's findings in the formats that other programs read."""

from qrole.audit.output.github import github_annotations
from qrole.audit.output.payload import report_payload
from qrole.audit.output.sarif import sarif_log

__all__ = ["github_annotations", "report_payload", "sarif_log"]
