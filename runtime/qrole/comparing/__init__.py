"""Numerics of a plan against a reference plan."""

from qrole.comparing.baseline import check_baseline, load_baseline, noise_floor
from qrole.comparing.budgets import Budget, Violation, check_budgets, load_budgets
from qrole.comparing.comparison import compare, named_dtype
from qrole.comparing.data import DataOptions
from qrole.comparing.gate import Gate, judge, write_text
from qrole.comparing.report import Report
from qrole.comparing.restriction import check_grouping

__all__ = [
    "Budget",
    "DataOptions",
    "Gate",
    "Report",
    "Violation",
    "check_baseline",
    "check_budgets",
    "check_grouping",
    "compare",
    "judge",
    "load_baseline",
    "load_budgets",
    "named_dtype",
    "noise_floor",
    "write_text",
]
