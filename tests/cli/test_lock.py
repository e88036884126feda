"""`qrole lock` in the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


@pytest.fixture
def mlp(samples: Path) -> Path:
    return samples / "mlp.py"


def test_write_and_check(cli: Cli, mlp: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.lock"
    written = cli("lock", mlp, "-f", "nvfp4", "-o", file)
    assert written.code == 0
    assert f"PASSED {file}: " in written.err
    before = file.read_bytes()
    checked = cli("lock", mlp, "-f", "nvfp4", "-o", file, "--check", "--json")
    assert checked.code == 0
    assert json.loads(checked.out)["changes"] == []
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["plan.lock"]


def test_a_plan_that_changed(cli: Cli, mlp: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.lock"
    cli("lock", mlp, "-f", "nvfp4", "-o", file)
    before = file.read_bytes()
    result = cli("lock", mlp, "-f", "mxfp8", "-o", file, "--check")
    assert result.code == 1
    assert "-> MXFP8Quantizer(fp8_dtype=kFloat8E4M3)" in " ".join(result.out.split())
    assert f"slots differ from {file}" in result.err
    assert file.read_bytes() == before
    payload = json.loads(cli("lock", mlp, "-f", "mxfp8", "-o", file, "--check", "--json").out)
    assert payload["schema"] == "qrole.diff/1"


def test_check_without_a_lock_file(cli: Cli, mlp: Path, tmp_path: Path) -> None:
    result = cli("lock", mlp, "-f", "nvfp4", "-o", tmp_path / "none.lock", "--check")
    assert result.code == 2
    assert "run `qrole lock` without --check first" in result.err


def test_the_default_name(
    cli: Cli, mlp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("lock", mlp, "-f", "mxfp8").code == 0
    assert (tmp_path / "qrole.lock").is_file()
