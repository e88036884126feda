"""Rules of the source tree that no linter knows."""

from __future__ import annotations

import re
import subprocess

import pytest

_FORBIDDEN_NAMES = {"utils.py", "common.py", "helpers.py", "misc.py"}


@pytest.fixture(scope="module")
def tracked(root):
    listed = subprocess.run(
        ["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [root / name for name in listed if (root / name).is_file()]


def test_no_drawers_for_odds_and_ends(tracked):
    assert [path for path in tracked if path.name in _FORBIDDEN_NAMES] == []


def test_no_path_of_a_machine(tracked):
    pattern = re.compile(rb"(?<![\w.])/(work|root|home|tmp)/\w")
    found = [
        path
        for path in tracked
        if path.suffix in (".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".sh", "")
        and pattern.search(path.read_bytes())
    ]
    assert found == []


def test_library_and_kernels_never_print(root):
    pattern = re.compile(r"^\s*print\(", re.MULTILINE)
    sources = [*(root / "runtime").rglob("*.py"), *(root / "kernels").rglob("*.py")]
    assert [path for path in sources if pattern.search(path.read_text())] == []
