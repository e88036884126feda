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
