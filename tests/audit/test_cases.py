"""Every planted mistake is found, nothing else is, and the correction is clean."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest

from qrole.auditing import AuditReport, Severity, codes
from tests.audit import cases
from tests.audit.building import Case

CASES = [
    pytest.param(case, id=f"{module.name}: {case.name}")
    for module in pkgutil.iter_modules(cases.__path__)
    for case in importlib.import_module(f"tests.audit.cases.{module.name}").CASES
]


def found(report: AuditReport, *severities: Severity) -> set[str]:
    return {f.code.name for f in report.findings if f.code.severity in severities}


def serious(report: AuditReport) -> set[str]:
    return found(report, Severity.ERROR, Severity.WARNING)


def notes_of(case: Case) -> set[str]:
    return {name for name in case.codes if codes()[name].severity is Severity.NOTE}


@pytest.mark.parametrize("case", CASES)
def test_the_mistake_is_found(case: Case, tmp_path: Path) -> None:
    report = case.mistake(tmp_path)
    notes = found(report, Severity.NOTE) & notes_of(case)
    assert serious(report) | notes == case.codes | case.also


@pytest.mark.parametrize("case", CASES)
def test_the_correction_is_clean(case: Case, tmp_path: Path) -> None:
    report = case.corrected(tmp_path)
    assert serious(report) | (found(report, Severity.NOTE) & notes_of(case)) == case.also


def test_every_code_has_a_case_that_shows_it() -> None:
    shown = {name for parameter in CASES for name in parameter.values[0].codes}
    assert shown == set(codes())


def test_there_are_many_cases_with_names_of_their_own() -> None:
    names = [parameter.values[0].name for parameter in CASES]
    assert len(names) >= 30
    assert len(set(names)) == len(names)
