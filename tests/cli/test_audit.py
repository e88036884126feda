"""`qrole audit` in the terminal: findings, formats, settings and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.audit.building import FP8_GROUP, bf16, compressed, fp8, write_safetensors
from tests.runtime.auditing.sarif_schema import SCHEMA

Cli = Callable[..., Any]

FACTORY = """
from qrole import IdentityQuantizer, MXFP8Quantizer


def f(role):
    if "lm_head" in role.name or "q_proj" in role.name:
        return IdentityQuantizer()
    return MXFP8Quantizer(7)
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a pyproject.toml of the checkout above it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def factory(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(FACTORY)
    return "mine.py:f"


@pytest.fixture
def model(samples: Path) -> Path:
    return samples / "llama_tiny.py"


def test_findings_are_grouped_worst_first(cli: Cli, model: Path, factory: str) -> None:
    result = cli("audit", model, "-f", factory, "--target", "sm_90")
    assert result.code == 1
    lines = result.out.splitlines()
    headings = [line.split()[:2] for line in lines if line.startswith("QR")]
    assert headings == [["QR402", "error"], ["QR505", "error"]]
    assert "  layers.0-3.self_attn.q_proj (4)" in lines
    assert any("decided at" in line and "mine.py:7" in line for line in lines)
    assert any(line.startswith("    to do: give all of them equal quantizers") for line in lines)
    assert result.err.startswith("FAILED 28 errors, 0 warnings, 0 notes in 87 slots; ")


def test_a_clean_plan_passes(cli: Cli, model: Path, factory: str) -> None:
    text = FACTORY.replace('"q_proj" in role.name', '"self_attn" in role.name')
    Path("mine.py").write_text(text)
    result = cli("audit", model, "-f", factory)
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith("PASSED 0 errors, 0 warnings, 0 notes in 87 slots; ")


def test_json(cli: Cli, model: Path, factory: str) -> None:
    result = cli("audit", model, "-f", factory, "--json")
    payload = json.loads(result.out)
    assert payload["schema"] == "qrole.audit/1"
    assert [f["code"] for f in payload["findings"]] == ["QR505"] * 4
    assert result.code == 1


def test_github_annotations(cli: Cli, model: Path, factory: str) -> None:
    result = cli("audit", model, "-f", factory, "--format", "github")
    assert result.out.startswith("::error file=mine.py,line=7,title=QR505 ")
    assert len(result.out.splitlines()) == 1


def test_sarif(cli: Cli, model: Path, factory: str) -> None:
    result = cli("audit", model, "-f", factory, "--format", "sarif")
    log = json.loads(result.out)
    jsonschema.validate(log, SCHEMA)
    assert log["runs"][0]["results"][0]["ruleId"] == "QR505"


def test_markdown_and_csv(cli: Cli, model: Path, factory: str) -> None:
    markdown = cli("audit", model, "-f", factory, "--format", "markdown")
    assert markdown.out.startswith("| code | severity | where | message | to do |\n")
    table = cli("audit", model, "-f", factory, "--format", "csv")
    assert len(table.out.splitlines()) == 1 + 4


def test_select_and_ignore(cli: Cli, model: Path, factory: str) -> None:
    assert cli("audit", model, "-f", factory, "--ignore", "QR505").code == 0
    assert cli("audit", model, "-f", factory, "--select", "QR3,QR4").code == 0
    result = cli("audit", model, "-f", factory, "--ignore", "QR505", "--ignore", "QR304")
    assert result.code == 1
    assert "ignore QR304" in result.out


def test_settings_of_the_project(cli: Cli, model: Path, factory: str, tmp_path: Path) -> None:
    settings = '[tool.qrole]\nignore = ["QR505"]\ntarget = "sm_90"\n'
    (tmp_path / "pyproject.toml").write_text(settings)
    assert "QR402" in cli("audit", model, "-f", factory).out
    result = cli("audit", model, "-f", factory, "--target", "sm_100")
    assert (result.code, result.out) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--select", "QR9"), "no code starts with 'QR9'"),
        (("--target", "h100"), "there is no target 'h100'"),
        (("--target", "sm_99"), "sm_90 (Hopper)"),
        (("--engine", "vlm"), "did you mean 'vllm'?"),
    ],
)
def test_wrong_options_are_usage_errors(
    cli: Cli, model: Path, factory: str, arguments: tuple[str, ...], message: str
) -> None:
    result = cli("audit", model, "-f", factory, *arguments)
    assert result.code == 2
    assert message in result.err


def test_a_file_without_a_factory_is_a_usage_error(cli: Cli, model: Path) -> None:
    result = cli("audit", model)
    assert result.code == 2
    assert "no factory is given" in result.err


def test_a_model_without_slots_is_no_pass(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("from torch import nn\nmodel = nn.ReLU()\n")
    assert cli("audit", "empty.py", "-f", "mxfp8").code == 5


def checkpoint(folder: Path, ignore: list[str]) -> None:
    tensors = bf16("lm_head")
    for name in "qkvo":
        tensors |= fp8(f"layers.0.self_attn.{name}_proj")
    write_safetensors(folder / "model.safetensors", tensors)
    config = compressed((FP8_GROUP, [r"re:.*self_attn\.(q|k|v|o)_proj$"]), ignore=ignore)
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))


def test_a_written_checkpoint(cli: Cli, tmp_path: Path) -> None:
    checkpoint(tmp_path, ["lm_head"])
    result = cli("audit", tmp_path)
    assert result.code == 0, result.out
    assert "note: read as vllm, sglang, transformers would read it" in result.err
    assert "0 notes in 5 weights" in result.err
    shown = cli("audit", tmp_path, "--readings").out.splitlines()
    assert shown[0].split() == ["module", "xN", "stored", "vllm", "sglang", "transformers"]
    assert shown[1].split() == ["lm_head", "1", *["high", "precision"], *["not", "quantized"] * 3]
    assert shown[2].split() == ["layers.0.self_attn.q_proj", "1", *["fp8_channel"] * 4]
    payload = json.loads(cli("audit", tmp_path, "--json").out)
    assert payload["readings"]["vllm"]["lm_head"] == "not quantized"
    checkpoint(tmp_path, ["*lm_head*"])
    result = cli("audit", tmp_path, "--engine", "sglang")
    assert result.code == 1
    assert "sglang refuses: neither a target nor ignored" in result.out


def test_what_apply_writes_is_clean(cli: Cli, samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    model = samples / "llama_tiny.py"
    written = cli("apply", model, "-f", "mxfp8", "--weight-only", "-o", out)
    assert written.code == 0, written.err
    result = cli("audit", out)
    assert (result.code, result.out) == (0, "")


def test_a_corrupt_checkpoint(cli: Cli, tmp_path: Path) -> None:
    checkpoint(tmp_path, ["lm_head"])
    (tmp_path / "model.safetensors").write_bytes(b"12345678")
    assert cli("audit", tmp_path).code == 4


@pytest.mark.slow
def test_stored_weights_are_read_where_asked(cli: Cli, minilm: Path) -> None:
    result = cli("audit", minilm, "-f", "mxfp8", "--weights", "--inference")
    assert result.code == 0, result.out


@pytest.mark.slow
@pytest.mark.parametrize(("name", "slots"), [("llama_405b", 2649), ("moe_671b", 90555)])
def test_huge_models_take_seconds_and_little_memory(samples: Path, name: str, slots: int) -> None:
    path = str(samples / name / "model.py")
    program = (
        "import resource, sys, time; from qrole.loading import load_model; "
        f"model = load_model({path!r}, weights=False); start = time.monotonic(); "
        "from qrole.auditing import AuditOptions, audit_model; "
        "report = audit_model(model, 'nvfp4', AuditOptions(ignore=('QR501',))); "
        "print(report.slots, report.failed(), time.monotonic() - start, "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    count, failed, seconds, kib = found.stdout.split()
    assert (int(count), failed) == (slots, "False")
    assert float(seconds) < 60
    assert int(kib) < 1_000_000
