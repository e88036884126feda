"""The registry of codes is the documentation, and it is complete."""

from __future__ import annotations

import subprocess
import sys

import pytest

from qrole.auditing import codes, documentation, find_code
from qrole.auditing.registry import FAMILY_NAMES, Severity, check
from qrole.errors import UnknownNameError

SUBJECTS = {"PlanSubject", "WeightsSubject", "DeclarationSubject", "SettingsSubject"}


@pytest.mark.parametrize("name", codes())
def test_every_code_explains_itself(name: str) -> None:
    found = find_code(name)
    assert found.subject in SUBJECTS
    assert len(found.summary) <= 90
    assert not found.summary.endswith(".")
    assert found.summary[0].isupper()
    assert len(found.explanation.split()) >= 12
    assert found.family in FAMILY_NAMES.values()


def test_codes_are_sorted_and_cover_every_family() -> None:
    names = list(codes())
    assert names == sorted(names)
    assert {name[2] for name in names} == set(FAMILY_NAMES)


def test_summaries_are_unique() -> None:
    summaries = [code.summary for code in codes().values()]
    assert len(set(summaries)) == len(summaries)


def test_a_code_is_found_in_any_case() -> None:
    assert find_code("qr304") is find_code("QR304")


def test_an_unknown_code_names_its_neighbours() -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_code("QR399")
    assert "no code 'QR399'" in caught.value.given
    assert "QR309" in caught.value.hint


def test_a_code_is_registered_once() -> None:
    with pytest.raises(AssertionError, match="QR304 is registered once"):

        @check("QR304", Severity.NOTE)
        def again(subject: object) -> list[object]:  # type: ignore[arg-type]
            """Again."""
            return []


def test_documentation_has_a_section_per_code() -> None:
    page = documentation()
    for name, code in codes().items():
        assert f"### {name}\n\n{code.summary} ({code.severity}).\n" in page


def test_the_audit_is_imported_without_torch() -> None:
    program = (
        "import sys; from qrole.auditing import codes, audit_checkpoint; codes(); "
        "import qrole.lock, qrole.diff, qrole.why, qrole.factories.rules_file; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
