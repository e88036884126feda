"""`qrole why` in the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

FACTORY = """
from qrole import IdentityQuantizer, MXFP8Quantizer

def f(role):
    if role.tensor_type == "weight" and "fc" in role.name:
        return MXFP8Quantizer(7)
    return IdentityQuantizer()
"""
RULES = '[[rule]]\nmodule = "head"\nfactory = "mxfp8"\n[[rule]]\nmodule = "*"\nfactory = "nvfp4"\n'


@pytest.fixture
def mlp(samples: Path) -> Path:
    return samples / "mlp.py"


def first_module(cli: Cli, mlp: Path) -> str:
    found: str = json.loads(cli("inspect", mlp, "--json").out)["slots"][0]["module"]
    return found


def test_the_line_and_its_conditions(cli: Cli, mlp: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FACTORY)
    module = first_module(cli, mlp)
    result = cli("why", mlp, f"{module}:forward[0]", "-f", f"{path}:f")
    assert result.code == 0
    text = " ".join(result.out.split())
    assert f"{module}:forward[0] role module_type=linear|tensor_type=input" in text
    assert "gets high precision" in text
    assert f"decided by factory {path}:7 return IdentityQuantizer()" in text
    assert "line 5: role.tensor_type == 'weight' and 'fc' in role.name was false" in text


def test_rules_that_lost(cli: Cli, mlp: Path, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    module = first_module(cli, mlp)
    text = " ".join(cli("why", mlp, module, "-f", path).out.split())
    assert f"decided by rule {path}:4" in text
    assert f"rule 1: module '{module}' does not match head rule 2: decides" in text


def test_json(cli: Cli, mlp: Path) -> None:
    module = first_module(cli, mlp)
    payload = json.loads(cli("why", mlp, module, "-f", "nvfp4", "--json").out)
    assert payload["schema"] == "qrole.why/1"
    slots = payload["slots"]
    assert [slot["id"] for slot in slots] == [
        f"{module}:{place}" for place in ("forward[0]", "forward[1]", "backward[0]")
    ]
    assert slots[1]["origin"]["text"] == "return NVFP4Quantizer(with_2d_quantization=True)"


def test_an_unknown_slot(cli: Cli, mlp: Path) -> None:
    result = cli("why", mlp, "nowhere", "-f", "nvfp4")
    assert result.code == 2
    assert "there is no slot or module 'nowhere'" in result.err
