"""`qrole diff` in the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


@pytest.fixture
def llama(samples: Path) -> Path:
    return samples / "llama_tiny.py"


def test_two_factories(cli: Cli, llama: Path) -> None:
    result = cli("diff", "mxfp8", "float8_block_scaling", "--model", llama)
    assert result.code == 1
    text = " ".join(result.out.split())
    assert "29x linear/weight: MXFP8Quantizer(fp8_dtype=kFloat8E4M3) -> Float8Block" in text
    assert "layers.0-3.mlp.{down,gate,up}_proj (12)" in text
    assert result.err == "FAILED 87 slots differ\n"


def test_equal_plans(cli: Cli, llama: Path) -> None:
    result = cli("diff", "mxfp8", "mxfp8", "--model", llama)
    assert (result.code, result.out, result.err) == (0, "", "PASSED no slots differ\n")


def test_json(cli: Cli, llama: Path) -> None:
    payload = json.loads(cli("diff", "mxfp8", "nvfp4", "--model", llama, "--json").out)
    assert payload["schema"] == "qrole.diff/1"
    assert len(payload["changes"]) == 87
    assert set(payload["changes"][0]) == {"where", "before", "after"}


def test_a_checkpoint_and_its_manifest_and_its_factory(
    cli: Cli, llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    written = cli("apply", llama, "-f", "mxfp8", "--weight-only", "-o", out)
    assert written.code == 0, written.err
    assert cli("diff", out, out / "qrole_manifest.json").code == 0
    result = cli("diff", out, "mxfp8", "--model", llama)
    assert result.out.splitlines() == ["1x high precision -> mxfp8", "  lm_head"]
    assert result.err == "FAILED 1 weight differs\n"


def test_a_factory_without_a_model(cli: Cli) -> None:
    result = cli("diff", "mxfp8", "nvfp4")
    assert result.code == 2
    assert "no model is named" in result.err
