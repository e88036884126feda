"""Every example runs as it stands, in an empty folder, and says what its user came for."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "examples"
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a script with arguments in a temporary folder: exit code and stdout."""
    monkeypatch.chdir(tmp_path)

    def call(name: str, *arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        code = 0
        try:
            runpy.run_path(str(SCRIPTS / name), run_name="__main__")
        except SystemExit as left:
            code = int(left.code or 0)
        return code, capsys.readouterr().out

    return call


def test_inspect_model(run: Run) -> None:
    code, out = run("inspect_model.py")
    assert code == 0
    assert "853,120 parameters, 87 slots:" in out
    assert "29 linear/grad_output" in out
    assert "29 NVFP4 RHT SR" in out
    assert "layers.0.self_attn.q_proj:forward[1] is module_type=linear" in out


def test_inspect_another_model(run: Run, samples: Path) -> None:
    _, out = run("inspect_model.py", str(samples / "vit_tiny.py"), "mxfp8")
    assert "no role: " in out
    assert "convolution" in out
    assert "MXFP8 E4M3" in out


def test_audit_factory(run: Run) -> None:
    code, out = run("audit_factory.py")
    assert code == 0
    for finding in ("QR301 error x29", "QR504 error x1: lm_head", "QR207 warning x1"):
        assert finding in out
    assert "audit_factory.py:18" in out
    assert out.splitlines()[-1].startswith("FAILED: ")


def test_write_rules(run: Run) -> None:
    _, out = run("write_rules.py")
    assert "layers.0.mlp.down_proj       {'input': 'NVFP4 RHT'" in out
    assert "87 slots; the rules and the function agree: True" in out


def test_write_checkpoint(run: Run, tmp_path: Path) -> None:
    _, out = run("write_checkpoint.py")
    assert (tmp_path / "quantized" / "model.safetensors").is_file()
    assert "vllm loads" in out
    assert "sound; worst: layers." in out
    assert "its codes: torch.uint8 (" in out
    percent = float(out.split("outputs differ by ")[1].rstrip("%\n"))
    assert 0 < percent < 20


def test_ci_gate(run: Run) -> None:
    code, out = run("ci_gate.py")
    assert code == 0
    assert "### qrole compare: passed" in out
    assert out.splitlines()[-1] == "PASSED"


def test_ci_gate_that_fails(run: Run, samples: Path) -> None:
    code, out = run("ci_gate.py", str(samples / "llama_tiny.py"), "nvfp4")
    assert code == 1
    assert "weight: sqnr_db" in out
    assert out.splitlines()[-1] == "FAILED"


def test_train_step(run: Run) -> None:
    _, out = run("train_step.py")
    rows = [line.split() for line in out.splitlines()[1:]]
    exact, quantized = ([float(row[i]) for row in rows] for i in (1, 2))
    assert len(exact) == 6
    assert exact == sorted(exact, reverse=True)
    assert quantized == sorted(quantized, reverse=True)
    assert quantized != exact
    assert quantized == pytest.approx(exact, rel=0.05)


def test_search_formats(run: Run, samples: Path, tmp_path: Path) -> None:
    _, out = run("search_formats.py", str(samples / "llama_tiny.py"), "5")
    assert "uniform nvfp4" in out
    assert (tmp_path / "rules.toml").read_text().startswith("# Formats for ")
    bits = float(next(line for line in out.splitlines() if line.startswith("found")).split()[1])
    assert 4.5 < bits <= 5
    assert "NVFP4 2D" in out
    assert "MXFP8 E4M3" in out


def test_examples_are_short_and_all_of_them_are_run() -> None:
    scripts = sorted(SCRIPTS.glob("*.py"))
    tests = Path(__file__).read_text()
    assert [s.name for s in scripts if f'run("{s.name}"' not in tests] == []
    assert [s.name for s in scripts if len(s.read_text().splitlines()) >= 60] == []
