"""A model file written for TransformerEngine: inspected, trained a step, on this machine."""

import shutil
from pathlib import Path

import pytest

from qrole import te_shim
from qrole.user_code import load_file

MODEL = Path(__file__).with_name("files") / "model.py"
FACTORY = MODEL.with_name("alias_te.py")


@pytest.fixture(autouse=True)
def _fresh():
    te_shim.uninstall()
    yield
    te_shim.uninstall()


def test_forward_and_backward():
    module = load_file(MODEL)
    model = module.build()
    (x,) = module.example_inputs()
    y = model(x)
    assert y.shape == (32, 32)
    y.square().sum().backward()
    missing = [n for n, p in model.named_parameters() if p.grad is None and "router" not in n]
    assert missing == []
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_inspect_from_the_terminal(cli):
    result = cli("inspect", MODEL, "--factory", f"{FACTORY}:factory", "--json")
    assert result.code == 0, result.err
    assert "layer0.self_attention.layernorm_linear_qkv" in result.out
    assert "MXFP8 E4M3 2D" in result.out


def test_switched_off_from_the_terminal(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("QROLE_NO_TE_SHIM", "0")
    copied = shutil.copy(MODEL, tmp_path / "another_model.py")
    result = cli("--no-te-shim", "inspect", copied)
    assert result.code == 2
    assert "No module named 'transformer_engine'" in result.err
