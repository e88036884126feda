"""Numerics of a plan against a reference plan."""

from qrole.compare.budgets import Budget, Violation, check_budgets, load_budgets
from qrole.compare.comparison import compare
from qrole.compare.data import DataOptions
from qrole.compare.report import Report

__all__ = [
    "Budget",
    "DataOptions",
    "Report",
    "Violation",
    "check_budgets",
    "compare",
    "load_budgets",
]
