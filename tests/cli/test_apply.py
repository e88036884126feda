"""`qrole apply` in the terminal: outcomes, notes, refusals and their exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qrole.checkpoint.headers import read_headers

Cli = Callable[..., Any]


@pytest.mark.parametrize(
    ("factory", "scheme"),
    [
        ("current_scaling", "fp8_tensor_a16"),
        ("mxfp8", "mxfp8_a16"),
        ("nvfp4", "nvfp4_a16"),
        ("float8_block_scaling", "fp8_block"),
    ],
)
def test_a_real_model_is_written_and_verifies(
    cli: Cli, minilm: Path, tmp_path: Path, factory: str, scheme: str
) -> None:
    out = tmp_path / "out"
    result = cli("apply", minilm, "-f", factory, "--weight-only", "-o", out)
    assert result.code == 0, result.err
    assert f"37 layers {scheme}" in result.err
    assert result.out == ""
    manifest = json.loads((out / "qrole_manifest.json").read_text())
    assert manifest["factory"]["name"] == factory
    assert len(manifest["layers"]) == 37
    assert (out / "tokenizer.json").is_file()
    assert (out / "1_Pooling" / "config.json").is_file()
    checked = cli("verify", out, "--source", minilm)
    assert checked.code == 0, checked.err
    assert "67 tensors unchanged" in checked.err


@pytest.mark.parametrize("sample", ["mlp", "llama_tiny", "moe_tiny", "vit_tiny"])
@pytest.mark.parametrize("factory", ["nvfp4_row_scaled_fwd_mxfp8_bwd", "delayed_scaling"])
def test_sample_models_keep_all_that_quantizers_make(
    cli: Cli, samples: Path, tmp_path: Path, sample: str, factory: str
) -> None:
    model, out = samples / f"{sample}.py", tmp_path / "out"
    result = cli("apply", model, "-f", factory, "--layout", "native", "-o", out)
    assert result.code == 0, result.err
    assert "vLLM does not load: does not read the layout native" in " ".join(result.err.split())
    checked = cli("verify", out, "--source", model)
    assert checked.code == 0, checked.err
    assert "does not read the layout native" in " ".join(checked.err.split())


def test_the_native_layout_is_offered_and_for_no_engine(
    cli: Cli, samples: Path, tmp_path: Path
) -> None:
    assert "native" in cli("apply", "--help").out
    asked = ("-f", "nvfp4", "--layout", "native", "--engine", "vllm", "-o", tmp_path / "out")
    result = cli("apply", samples / "mlp.py", *asked)
    assert result.code == 2
    assert "--engine with the layout native" in " ".join(result.err.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sample", ["mlp", "llama_tiny", "moe_tiny", "vit_tiny"])
def test_sample_models(cli: Cli, samples: Path, tmp_path: Path, sample: str) -> None:
    model, out = samples / f"{sample}.py", tmp_path / "out"
    assert cli("apply", model, "-f", "mxfp8", "--weight-only", "-o", out).code == 0
    assert cli("verify", out, "--source", model).code == 0


def test_an_output_that_exists_is_left_alone(cli: Cli, samples: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    result = cli("apply", samples / "mlp.py", "-f", "mxfp8", "--weight-only", "-o", tmp_path)
    assert result.code == 2
    assert f"{tmp_path} exists" in result.err
    assert "--force" in result.err
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_force_replaces_an_output(cli: Cli, samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_text("old")
    arguments = ("apply", samples / "mlp.py", "-f", "mxfp8", "--weight-only", "-o", out)
    assert cli(*arguments, "--force").code == 0
    assert not (out / "old").exists()
    assert read_headers(out)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_plan_that_quantizes_nothing(cli: Cli, samples: Path, tmp_path: Path) -> None:
    result = cli("apply", samples / "mlp.py", "-f", "high_precision", "-o", tmp_path / "out")
    assert result.code == 5
    assert "quantizes no weight" in result.err
    assert not list(tmp_path.iterdir())


def test_a_truncated_source(cli: Cli, minilm: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes((minilm / "model.safetensors").read_bytes()[:100_000])
    result = cli("apply", cut, "-f", "mxfp8", "-o", tmp_path / "out")
    assert result.code == 4
    assert "truncated: tensors end at byte" in result.err
