"""What all commands share: their common options on either side, and what of a mistake is shown."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qrole import te_shim
from qrole_cli import console

Cli = Callable[..., Any]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("option", ["-q", "--quiet"])
def test_quiet_on_either_side(cli: Cli, samples: Path, option: str, before: bool) -> None:
    command = ("inspect", samples / "llama_tiny.py", "--module", "lm_head")
    assert "not shown" in cli(*command).err
    result = cli(option, *command) if before else cli(*command, option)
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize("arguments", [("-v", "inspect"), ("inspect", "-v")], ids=" ".join)
def test_verbose_on_either_side(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert "Traceback" in cli(*arguments, "nope.py").err
    assert "Traceback" not in cli("inspect", "nope.py").err


def test_the_later_of_two_wins(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QROLE_NUM_THREADS", "7")
    cli("--threads", "3", "factories", "--threads", "2")
    assert os.environ["QROLE_NUM_THREADS"] == "2"
    cli("--threads", "3", "-q", "factories")
    assert os.environ["QROLE_NUM_THREADS"] == "3"


def test_they_are_not_kept_for_the_next_command(cli: Cli) -> None:
    cli("factories", "-q", "-v")
    assert (console.settings.quiet, console.settings.verbose) == (True, True)
    cli("factories")
    assert (console.settings.quiet, console.settings.verbose) == (False, False)


def test_the_shim_is_turned_off_behind_the_command(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QROLE_NO_TE_SHIM", "0")
    cli("factories", "--no-te-shim")
    assert os.environ["QROLE_NO_TE_SHIM"] == "1"


_USES_TE = """
import transformer_engine.pytorch as te
import transformer_engine.common.recipe

def f(role):
    from transformer_engine.pytorch import MXFP8Quantizer
    return MXFP8Quantizer(te.DType.kFloat8E4M3)
"""


@pytest.mark.parametrize(("options", "times"), [((), 1), (("-q",), 0)], ids=["said once", "quiet"])
def test_the_stand_in_for_transformer_engine_is_announced(
    cli: Cli, samples: Path, tmp_path: Path, options: tuple[str, ...], times: int
) -> None:
    te_shim.uninstall()
    (tmp_path / "f.py").write_text(_USES_TE)
    result = cli("inspect", samples / "mlp.py", "-f", f"{tmp_path}/f.py:f", "--json", *options)
    te_shim.uninstall()
    assert json.loads(result.out)["factory"]["name"].endswith("f.py:f")
    assert result.err.count("transformer_engine is not installed; qrole's") == times
    assert "transformer_engine" not in cli("inspect", samples / "mlp.py", "-f", "mxfp8").err


def test_help_names_arguments_and_values_plainly(cli: Cli) -> None:
    text = cli("report", "-h").out
    assert "qrole report [OPTIONS] JSON..." in text
    assert not {"{", "<bool>"} & set(text.replace("}", "{").split())
    assert "<bool>" not in cli("inspect", "-h").out
    assert "--quiet" in cli("inspect", "-h").out
