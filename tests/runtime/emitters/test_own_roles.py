"""Modules that speak of roles themselves are believed; registered emitters are asked in order."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from qrole.emitters import walk_module
from qrole.roles import QuantizerRole


@dataclass(frozen=True)
class ForeignRole:
    """A role class of another package, as TransformerEngine's own would be."""

    module_type: str
    tensor_type: str
    name: str


class RoleLinear(nn.Linear):
    """A linear layer with roles of its own."""

    num_gemms = 1

    def get_quantizer_roles(self, *, fwd, num_quantizers):
        kinds = ("input", "weight", None) if fwd else ("grad_output", None)
        assert num_quantizers == len(kinds)
        return [kind and ForeignRole("special", kind, "n") for kind in kinds]


class SilentOp(nn.Module):
    """An op that asks for one forward quantizer and gives no roles."""

    def num_quantizers(self, mode):
        return 1 if mode == "forward" else 0

    def get_quantizer_roles(self, mode):
        return None


def test_own_roles_win_over_the_class():
    found = walk_module(RoleLinear(8, 4), "m")
    assert [s.role for s in found.slots] == [
        QuantizerRole("special", "input", "n"),
        QuantizerRole("special", "weight", "n"),
        None,
        QuantizerRole("special", "grad_output", "n"),
        None,
    ]
    assert [s.consumed for s in found.slots] == [True, True, False, True, False]
    assert found.slots[1].parameters == ("weight",)
    assert found.emitters == {"": "own roles"}


def test_missing_role_list_gives_bare_roles():
    (slot,) = walk_module(SilentOp(), "m").slots
    assert slot.role == QuantizerRole()
    assert slot.bare


def test_third_party_emitter_is_found_by_its_entry_point():
    from qrole_example_plugin import emitters

    found = walk_module(nn.Sequential(emitters.ScaledLinear(8, 4)), "m")
    assert found.emitters == {"0": "example scaled linear"}
    assert [u.parameters for u in found.uncovered] == [("0.scale",)]


def _te_class(class_name, **attributes):
    """A class as an installed TransformerEngine has it: its roles, no description of slots."""
    own = {"__module__": f"transformer_engine.pytorch.module.{class_name.lower()}", **attributes}
    return type(class_name, (nn.Module,), own)


def test_installed_transformer_engine_mlp_is_known_by_class():
    from qrole.modules import LayerNormMLP

    ours = LayerNormMLP(16, 32, name="mlp")
    roles = staticmethod(ours.get_quantizer_roles)
    theirs = _te_class("LayerNormMLP", get_quantizer_roles=roles, name="mlp")()
    theirs.fc1_weight, theirs.fc2_weight = ours.fc1_weight, ours.fc2_weight
    expected = [(s.role, s.operand, s.group, s.consumed, s.shape) for s in ours.quantizer_slots("")]
    found = walk_module(theirs, "m").slots
    assert [(s.role, s.operand, s.group, s.consumed, s.shape) for s in found] == expected


def test_installed_transformer_engine_experts_fold():
    from qrole.modules import GroupedLinear

    ours = GroupedLinear(3, 16, 32, name="experts")
    roles = staticmethod(ours.get_quantizer_roles)
    theirs = _te_class("GroupedLinear", get_quantizer_roles=roles, num_gemms=3, name="experts")()
    for i in range(3):
        setattr(theirs, f"weight{i}", getattr(ours, f"weight{i}"))
    found = walk_module(theirs, "m").slots
    assert [(s.id, s.copies, s.operand) for s in found] == [
        (s.id, s.copies, s.operand) for s in walk_module(ours, "m").slots
    ]
    assert found[1].parameters == ("weight0", "weight1", "weight2")


def test_installed_transformer_engine_attention_reads_six_slots():
    from qrole.modules import DotProductAttention

    ours = DotProductAttention(2, 8, name="core")
    roles = staticmethod(ours.get_quantizer_roles)
    theirs = _te_class("DotProductAttention", get_quantizer_roles=roles, name="core")()
    found = walk_module(theirs, "m").slots
    assert len(found) == 15
    assert [s.index for s in found if s.consumed] == [2, 3, 8, 0, 3, 5]
