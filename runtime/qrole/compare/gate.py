"""The outcome of a gate as data."""

from __future__ import annotations

import math
from typing import Any

from qrole.compare.budgets import Violation

__all__ = ["gate_json"]


def gate_json(violations: list[Violation]) -> dict[str, Any]:
    """JSON values of a gate's outcome, worst violation first."""
    return {
        "passed": not violations,
        "violations": [
            {
                "candidate": v.candidate,
                "where": v.where,
                "metric": v.metric,
                "value": v.value if math.isfinite(v.value) else str(v.value),
                "limit": v.limit,
            }
            for v in violations
        ],
    }
