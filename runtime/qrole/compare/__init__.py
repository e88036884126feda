"""Numerics of a plan against a reference plan."""

from qrole.compare.baseline import check_baseline, load_baseline
from qrole.compare.budgets import Budget, Violation, check_budgets, load_budgets
from qrole.compare.comparison import compare, named_dtype
from qrole.compare.data import DataOptions
from qrole.compare.gate import Gate, judge, write_text
from qrole.compare.report import Report

__all__ = [
    "Budget",
    "DataOptions",
    "Gate",
    "Report",
    "Violation",
    "check_baseline",
    "check_budgets",
    "compare",
    "judge",
    "load_baseline",
    "load_budgets",
    "named_dtype",
    "write_text",
]
