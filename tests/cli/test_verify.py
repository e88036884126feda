"""`qrole verify` in the terminal: the table, JSON, and what a defect looks like."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qrole.checkpoint.headers import read_headers

Cli = Callable[..., Any]


@pytest.fixture
def written(cli: Cli, samples: Path, tmp_path: Path) -> Path:
    out = tmp_path / "out"
    assert cli("apply", samples / "mlp.py", "-f", "nvfp4", "--weight-only", "-o", out).code == 0
    return out


def test_without_a_source_values_are_not_compared(cli: Cli, written: Path) -> None:
    result = cli("verify", written)
    assert result.code == 0
    assert "values were not compared" in result.err
    assert result.out == ""


def test_json_has_the_errors_of_all_layers(cli: Cli, written: Path, samples: Path) -> None:
    result = cli("verify", written, "--source", samples / "mlp.py", "--json")
    report = json.loads(result.out)
    assert (report["schema"], report["ok"]) == ("qrole.verify/1", True)
    assert [e["scheme"] for e in report["errors"]] == ["nvfp4_a16", "nvfp4_a16"]
    assert all(15 < e["sqnr_db"] < 25 for e in report["errors"])


def test_a_defect_is_named_and_fails(cli: Cli, written: Path, samples: Path) -> None:
    info = next(i for n, i in read_headers(written).items() if n.endswith("weight_packed"))
    content = bytearray(info.file.read_bytes())
    content[info.start] ^= 0x44
    info.file.write_bytes(content)
    result = cli("verify", written, "--source", samples / "mlp.py")
    assert result.code == 1
    assert "[wrong-values]" in result.err
    assert "FAILED" in result.err


def test_a_directory_that_is_not_quantized(cli: Cli, minilm: Path) -> None:
    result = cli("verify", minilm)
    assert result.code == 5
    assert "declares no quantized layer" in result.err


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("none", "does not exist"),
        ("empty", "holds no .safetensors file"),
        ("file", "is no directory"),
    ],
)
def test_what_is_no_checkpoint(cli: Cli, tmp_path: Path, made: str, says: str) -> None:
    place = tmp_path / "place"
    if made == "empty":
        place.mkdir()
    elif made == "file":
        place.write_text("")
    result = cli("verify", place)
    assert result.code == 4
    assert f"{place} {says}" in result.err
    assert "expected: a directory that `qrole apply` has written" in result.err
    assert "to do: check the path, or write one with `qrole apply" in result.err


def test_an_unfinished_checkpoint(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / ".out.qrole").mkdir()
    result = cli("verify", tmp_path / "out")
    assert result.code == 4
    assert f"{tmp_path / '.out.qrole'} holds an unfinished one" in result.err
    assert "give the same `qrole apply` command again" in result.err


def test_a_layer_without_any_error_is_json_too(cli, tmp_path):
    exact = (
        "import torch\nfrom torch import nn\ndef build():\n    m = nn.Linear(32, 32, bias=False)\n"
    )
    exact += "    m.weight.data = torch.eye(32)\n    return m\n"
    (tmp_path / "exact.py").write_text(exact)
    assert cli("apply", tmp_path / "exact.py", "-f", "mxfp8", "-o", tmp_path / "out").code == 0
    result = cli("verify", tmp_path / "out", "--source", tmp_path / "exact.py", "--json")
    assert result.code == 0, result.err
    assert '"inf"' in result.out
