"""The workflow that is there to be copied: its commands run as they are written."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Cli = Callable[..., Any]
_FACTORY = """
import qrole

def recipe(role):
    return qrole.MXFP8Quantizer(qrole.DType.kFloat8E4M3)
"""


@pytest.fixture
def workflow(root: Path) -> str:
    return (root / "examples" / "github-action" / "numerics.yml").read_text()


@pytest.fixture
def project(
    tmp_path: Path, samples: Path, monkeypatch: pytest.MonkeyPatch, workflow: str, cli: Cli
) -> Path:
    """A checkout as the workflow expects it, with the baseline that its head tells to write."""
    (tmp_path / "model.py").write_text((samples / "mlp.py").read_text())
    (tmp_path / "factory.py").write_text(_FACTORY)
    (tmp_path / "numerics").mkdir()
    (tmp_path / "numerics" / "budgets.toml").write_text('[budgets]\nlogits = "kl <= 0.02"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (first,) = re.findall(r"^#\s+qrole (.*)$", workflow, re.MULTILINE)
    assert cli(*shlex.split(first)).code == 0
    return tmp_path


def _steps(workflow: str) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(workflow)["jobs"].values() for step in job["steps"]]


def _commands(workflow: str) -> list[list[str]]:
    runs = [shlex.split(line) for step in _steps(workflow) for line in _lines(step)]
    return [words[1:] for words in runs if words[0] == "qrole"]


def _lines(step: dict[str, Any]) -> list[str]:
    return str(step.get("run", "")).strip().splitlines()


def test_every_command_passes_and_leaves_what_is_uploaded(
    cli: Cli, project: Path, workflow: str
) -> None:
    commands = _commands(workflow)
    assert commands
    for command in commands:
        result = cli(*command)
        assert result.code == 0, result.err
        assert result.err.splitlines()[-1].startswith("PASSED 2 limits kept")
    assert "qrole compare: passed" in (project / "summary.md").read_text()
    uploads = [
        step["with"]["path"] for step in _steps(workflow) if "upload" in step.get("uses", "")
    ]
    for name in uploads[0].split():
        assert (project / name).stat().st_size > 0


def test_an_error_that_has_grown_since_the_baseline_fails_it(
    cli: Cli, project: Path, workflow: str
) -> None:
    path = project / "numerics" / "baseline.json"
    baseline = json.loads(path.read_text())
    baseline["candidates"][0]["model"]["kl"] /= 2
    path.write_text(json.dumps(baseline))
    results = [cli(*command) for command in _commands(workflow)]
    assert [result.code for result in results] == [1]
    assert "::error title=qrole compare::" in results[0].err
