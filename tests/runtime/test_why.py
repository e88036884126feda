"""Why a slot got its quantizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from qrole.errors import UnknownNameError
from qrole.why import why
from tests.audit.building import decoder, one_layer

FACTORY = """
from qrole import IdentityQuantizer, MXFP8Quantizer


def f(role):
    if "mlp" in role.name:
        if role.tensor_type == "grad_output":
            return IdentityQuantizer()
        return MXFP8Quantizer(7)
    return role.nothing
"""

RULES = """
[[rule]]
module = "*.q_proj"
quantizer = "IdentityQuantizer"

[[rule]]
label = "mlp"
module = "*.mlp.*"
factory = "factory.py:f"

[[rule]]
module = "*.mlp.up_proj"
quantizer = "IdentityQuantizer"
"""


@pytest.fixture
def factory(tmp_path: Path) -> str:
    path = tmp_path / "factory.py"
    path.write_text(FACTORY)
    return f"{path}:f"


def test_line_and_conditions(factory: str) -> None:
    (reason,) = why(decoder(), "layers.1.mlp.up_proj:forward[1]", factory)
    origin = reason.decision.origin
    assert origin is not None
    assert (origin.line, origin.text) == (9, "return MXFP8Quantizer(7)")
    assert origin.conditions == (
        (6, "'mlp' in role.name", True),
        (7, "role.tensor_type == 'grad_output'", False),
    )
    assert reason.untraceable == ""
    assert reason.rules == ()


def test_neighbours(factory: str) -> None:
    (reason,) = why(decoder(), "layers.1.mlp.up_proj:forward[1]", factory)
    assert reason.layer == {"input": "MXFP8 E4M3", "grad_output": "high precision"}
    assert reason.alike == (("MXFP8 E4M3", 1),)


def test_all_slots_of_a_module(factory: str) -> None:
    reasons = why(decoder(), "layers.0.mlp.up_proj", factory)
    assert [reason.decision.slot.id.partition(":")[2] for reason in reasons] == [
        "forward[0]",
        "forward[1]",
        "backward[0]",
    ]


def test_a_slot_without_an_answer(factory: str) -> None:
    (reason,) = why(decoder(), "layers.0.self_attn.q_proj:forward[0]", factory)
    assert "has no attribute 'nothing'" in reason.decision.error
    assert reason.decision.origin is None
    assert reason.untraceable == ""


def test_rules_that_lost(factory: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    (reason,) = why(decoder(), "layers.0.mlp.up_proj:backward[0]", str(path))
    assert [(v.rule.index, v.mismatch, v.decides) for v in reason.rules] == [
        (1, "module 'layers.0.mlp.up_proj' does not match *.q_proj", False),
        (2, "", True),
        (3, "", False),
    ]
    origin = reason.decision.origin
    assert origin is not None
    assert (origin.kind, origin.line) == ("rule", 6)
    assert origin.text == (
        f"rule 2 (mlp): module = *.mlp.* -> factory factory.py:f, {tmp_path}/factory.py:8: "
        "return IdentityQuantizer()"
    )
    assert origin.conditions[-1] == (7, "role.tensor_type == 'grad_output'", True)


def test_what_no_rule_matched(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('[[rule]]\nmodule = "x"\nquantizer = "IdentityQuantizer"\n')
    (reason,) = why(one_layer(), "fc:forward[0]", str(path))
    assert reason.decision.origin is not None
    assert reason.decision.origin.kind == "default"


def test_an_unknown_slot_names_its_neighbours() -> None:
    with pytest.raises(UnknownNameError) as caught:
        why(one_layer(), "fc:forward[7]", "mxfp8")
    assert "fc:forward[0]" in caught.value.hint
