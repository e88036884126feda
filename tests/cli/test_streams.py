"""A reader that is gone, a full disk, a closed descriptor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_LISTS = ("explain",)
_REFUSED = ("inspect", "nope.py")


def _run(command: tuple[str, ...], redirection: str) -> subprocess.CompletedProcess[str]:
    line = f"{sys.executable} -m qrole_cli {' '.join(command)} {redirection}"
    return subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("redirection", ["| true", "2>&1 | true"])
@pytest.mark.parametrize("command", [_LISTS, ("--help",)], ids=" ".join)
def test_a_reader_that_is_gone_ends_it_quietly(command: tuple[str, ...], redirection: str) -> None:
    result = _run(command, redirection)
    assert (result.returncode, result.stderr) == (141, "")


def test_an_error_keeps_its_code_where_only_data_has_no_reader() -> None:
    result = _run(_REFUSED, "| true")
    assert result.returncode == 2
    assert result.stderr.startswith("error: there is no file 'nope.py'")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_an_io_error() -> None:
    result = _run(_LISTS, "> /dev/full")
    assert result.returncode == 4
    assert result.stderr.startswith("error: stdout cannot be written: No space left on device")


@pytest.mark.parametrize(("redirection", "code"), [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0)])
def test_a_closed_descriptor_takes_everything(redirection: str, code: int) -> None:
    assert _run(_LISTS, redirection).returncode == code
