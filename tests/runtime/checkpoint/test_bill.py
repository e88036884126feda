"""The bill says what is then written, and reads headers only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qrole.checkpoint.apply import apply
from qrole.checkpoint.bill import bill, dry_run
from qrole.checkpoint.headers import read_headers
from qrole.checkpoint.job import ApplyOptions, prepare
from tests.runtime.checkpoint.corruption import llama_like

ONLY_WEIGHTS = ApplyOptions(weight_only=True)


@pytest.mark.parametrize(
    ("factory", "bits"),
    [("nvfp4", 4.5), ("mxfp8", 8.25), ("current_scaling", 8.0)],
)
def test_it_is_what_is_written(tmp_path: Path, factory: str, bits: float) -> None:
    source = llama_like(tmp_path / "source")
    found = bill(prepare(str(source), factory, ONLY_WEIGHTS))
    apply(str(source), factory, tmp_path / "out", options=ONLY_WEIGHTS)
    tensors = read_headers(tmp_path / "out").values()
    assert found.output_bytes == sum(info.nbytes for info in tensors)
    assert found.quantized_bits == pytest.approx(bits, rel=0.01)
    stored = read_headers(source).values()
    assert sum(line.source_bytes for line in found.lines) == sum(i.nbytes for i in stored)
    assert found.seconds > 0


def test_weights_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qrole.checkpoint.source import Source

    def refuse(*_: Any) -> None:
        raise AssertionError("a weight file was mapped")

    monkeypatch.setattr(Source, "mapped", refuse)
    source = llama_like(tmp_path / "source")
    assert bill(prepare(str(source), "nvfp4", ONLY_WEIGHTS)).lines


def test_in_the_terminal(cli: Callable[..., Any], tmp_path: Path) -> None:
    source = llama_like(tmp_path / "source")
    result = cli("apply", source, "-f", "nvfp4", "--dry-run", "--json")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert report["schema"] == "qrole.bill/1"
    assert report["calibrated"] == 14
    assert "nothing was written" in result.err
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_a_calibration_is_said_to_be_left_out(cli: Callable[..., Any], tmp_path: Path) -> None:
    source = llama_like(tmp_path / "source")
    result = cli("apply", source, "-f", "nvfp4", "--dry-run", "--samples", 8)
    assert "first the model is loaded (609.0 KiB as stored)" in result.err
    assert "run on at most 8 samples, text cut to 512 tokens" in result.err
    assert "which no estimate here includes" in result.err
    assert "calibration and disk aside" in result.err


def test_no_time_is_zero(cli: Callable[..., Any], tmp_path: Path) -> None:
    source = llama_like(tmp_path / "source")
    result = cli("apply", source, "-f", "mxfp8", "--dry-run")
    assert "less than 0.1 s to quantize" in result.err
    assert "calibra" not in result.err


def test_no_output_and_no_dry_run(cli: Callable[..., Any], samples: Path) -> None:
    result = cli("apply", samples / "mlp.py", "-f", "mxfp8")
    assert result.code == 2
    assert "-o DIR, or --dry-run" in result.err


def test_a_plan_that_quantizes_nothing_has_a_bill_too(tmp_path: Path) -> None:
    source = llama_like(tmp_path / "source")
    found = dry_run(str(source), "high_precision", ApplyOptions(layout="native"))
    assert [line.name for line in found.lines] == ["high precision"]
    assert found.quantized_bits == found.bits
