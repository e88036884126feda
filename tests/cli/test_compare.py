"""`qrole compare` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


def _budgets(tmp_path: Path, line: str) -> Path:
    path = tmp_path / "budgets.toml"
    path.write_text(f"[budgets]\n{line}\n")
    return path


@pytest.fixture(autouse=True)
def outside_github(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)


def test_kept_and_broken_budgets(cli: Cli, samples: Path, tmp_path: Path) -> None:
    model = samples / "mlp.py"
    kept = cli(
        "compare", model, "-f", "mxfp8", "--budgets", _budgets(tmp_path, 'layer = "cosine > 0.9"')
    )
    assert kept.code == 0
    assert kept.err.strip().splitlines()[-1].startswith("PASSED 1 limit kept")
    broken = cli(
        "compare", model, "-f", "mxfp8", "--budgets", _budgets(tmp_path, 'logits = "kl <= 0"')
    )
    assert broken.code == 1
    assert broken.err.strip().splitlines()[-1].startswith("FAILED 1 limit broken")


def test_nothing_matched_is_exit_5(cli: Cli, samples: Path, tmp_path: Path) -> None:
    model = samples / "mlp.py"
    assert cli("compare", model, "-f", "high_precision").code == 5
    assert cli("compare", model, "-f", "mxfp8", "--only", "nowhere.*").code == 5
    budgets = _budgets(tmp_path, 'dpa = "mse < 1"')
    assert cli("compare", model, "-f", "mxfp8", "--budgets", budgets).code == 5


def test_json_is_versioned_and_holds_the_gate(cli: Cli, samples: Path) -> None:
    result = cli("compare", samples / "mlp.py", "-f", "nvfp4", "--json")
    payload = json.loads(result.out)
    assert payload["schema"] == "qrole.compare/1"
    assert payload["gate"] == {"judged": [], "passed": None, "violations": []}
    assert {g["gemm"] for g in payload["candidates"][0]["gemms"]} == {"fprop", "dgrad", "wgrad"}


def test_what_if_and_training_are_tables(cli: Cli, samples: Path) -> None:
    result = cli(
        "compare", samples / "mlp.py", "-f", "mxfp8", "-f", "nvfp4",
        "--one-at-a-time", "gemm", "--steps", "2",
    )  # fmt: skip
    assert result.code == 0
    for word in ("nvfp4: one group at a time", "wgrad", "training", "never"):
        assert word in result.out


def test_saved_reports_are_baselines(cli: Cli, samples: Path, tmp_path: Path) -> None:
    saved, junit = tmp_path / "report.json", tmp_path / "junit.xml"
    assert cli("compare", samples / "mlp.py", "-f", "mxfp8", "--save", saved).code == 0
    again = cli("compare", samples / "mlp.py", "-f", "mxfp8", "--baseline", saved, "--junit", junit)
    assert again.code == 0
    assert "PASSED 1 limit kept" in again.err
    assert junit.read_text().startswith("<?xml")


def test_github_is_told(
    cli: Cli, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    budgets = _budgets(tmp_path, 'logits = "kl <= 0"')
    result = cli("compare", samples / "mlp.py", "-f", "mxfp8", "--budgets", budgets, "--github")
    assert result.code == 1
    assert "::error title=qrole compare::" in result.err
    assert (tmp_path / "summary.md").read_text().startswith("### qrole compare: failed")


def test_real_sentences_through_the_models_tokenizer(
    cli: Cli, minilm: Path, tmp_path: Path
) -> None:
    text = tmp_path / "sentences.txt"
    text.write_text("A heavy frost had settled over the valley.\nInterest rates rose last month.\n")
    result = cli("compare", minilm, "-f", "mxfp8", "--data", text, "--forward-only", "--json")
    payload = json.loads(result.out)
    (candidate,) = payload["candidates"]
    assert (payload["data"]["samples"], len(candidate["layers"])) == (2, 37)
    assert candidate["model"]["cosine"] > 0.99
    assert candidate["parameters"] == []


_FROZEN = """
import torch
from torch import nn
def build():
    return nn.Linear(32, 32).requires_grad_(False)
def example_inputs():
    return (torch.rand(4, 32),)
"""
_MISFIT = """
import torch
from torch import nn
class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x[:, :31])
def build():
    return Net(32, 32)
def example_inputs():
    return (torch.rand(4, 32),)
"""


def test_a_frozen_model_has_no_backward_pass(cli, tmp_path):
    (tmp_path / "frozen.py").write_text(_FROZEN)
    result = cli("compare", tmp_path / "frozen.py", "-f", "mxfp8")
    assert result.code == 2
    assert "no parameter of the model requires a gradient" in result.err
    assert "--forward-only" in result.err
    assert cli("compare", tmp_path / "frozen.py", "-f", "mxfp8", "--forward-only").code == 0


@pytest.mark.parametrize("command", ["compare", "apply"])
def test_an_error_in_the_models_forward_is_the_users(cli, tmp_path, command):
    (tmp_path / "misfit.py").write_text(_MISFIT)
    options = ("-o", tmp_path / "out") if command == "apply" else ()
    result = cli(command, tmp_path / "misfit.py", "-f", "current_scaling", *options)
    assert result.code == 2
    assert "the forward pass of Net raised RuntimeError" in result.err
    assert 'misfit.py", line 6, in forward' in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--save", "--junit", "--html"])
def test_what_cannot_be_written_is_said_before_the_model_is_looked_for(cli, tmp_path, option):
    result = cli("compare", "nope.py", "-f", "mxfp8", option, tmp_path / "no" / "file")
    assert result.code == 4
    assert f"there is no folder {tmp_path / 'no'}" in result.err


def test_a_page_without_its_libraries_is_refused_first(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("qrole.reporting.page.find_spec", lambda name: None)
    result = cli("compare", "nope.py", "-f", "mxfp8", "--html", tmp_path / "page.html")
    assert result.code == 2
    assert "pip install 'qrole[report]'" in result.err
