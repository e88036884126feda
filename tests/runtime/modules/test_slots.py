"""What the modules tell plans and audits about their slots."""

from __future__ import annotations

import pytest

import qrole.modules as M
from qrole.emitters import walk
from qrole.factories.builtin import mxfp8_factory
from qrole.modules import ops
from qrole.modules.slots import EmitsSlots
from qrole.plans import build_plan
from qrole.plugins import Factory
from qrole.roles import QuantizerRole


def _facts(module, path="m"):
    """Each slot as `direction[index] group.operand`, with `!` where nothing reads it."""
    return [
        f"{s.direction}[{s.index}] {s.group + '.' if s.group else ''}{s.operand}"
        f"{'' if s.consumed else '!'}"
        for s in module.quantizer_slots(path)
    ]


def test_linear():
    module = M.Linear(32, 48, parameters_split=("a", "b"), name="te")
    assert _facts(module) == [
        "forward[0] input",
        "forward[1] weight",
        "forward[2] output!",
        "backward[0] grad_output",
        "backward[1] grad_input!",
    ]
    weight = module.quantizer_slots("layers.3")[1]
    assert weight.id == "layers.3:forward[1]"
    assert weight.shape == (48, 32)
    assert weight.parameters == ("layers.3.a_weight", "layers.3.b_weight")
    assert weight.te_name == "te"
    assert weight.module_class == "qrole.modules.linear.Linear"
    assert [str(read) for read in weight.reads] == ["fprop.row", "dgrad.col"]
    assert module.quantizer_slots("")[1].parameters == ("a_weight", "b_weight")


def test_a_boundary_slot_whose_reader_is_named_is_read():
    module = M.Linear(32, 32, name="te")
    module.output_quantizer_role = QuantizerRole("dpa", "qkv", "attention")
    output = module.quantizer_slots("m")[2]
    assert output.consumed
    assert output.te_name == "attention"


def test_layernorm_mlp():
    module = M.LayerNormMLP(32, 64, activation="swiglu", name="te")
    assert _facts(module) == [
        "forward[0] fc1.input",
        "forward[1] fc1.weight",
        "forward[2] fc1.output!",
        "forward[3] fc2.input",
        "forward[4] fc2.weight",
        "forward[5] fc2.output!",
        "backward[0] fc1.grad_output",
        "backward[1] fc1.grad_input!",
        "backward[2] fc2.grad_output",
        "backward[3] fc2.grad_input!",
    ]
    slots = module.quantizer_slots("m")
    assert (slots[1].shape, slots[4].shape) == ((128, 32), (32, 64))
    assert (slots[1].parameters, slots[4].parameters) == (("m.fc1_weight",), ("m.fc2_weight",))


def test_attention_reads_six_of_fifteen():
    read = [f for f in _facts(M.DotProductAttention(4, 16)) if not f.endswith("!")]
    assert read == [
        "forward[2] qkv",
        "forward[3] o",
        "forward[8] s",
        "backward[0] dqkv",
        "backward[3] do",
        "backward[5] dp",
    ]


@pytest.mark.parametrize("kind", [M.GroupedLinear, ops.GroupedLinear])
def test_equal_experts_are_one_slot_of_many_copies(kind):
    slots = kind(3, 32, 48).quantizer_slots("m")
    assert {slot.copies for slot in slots} == {3}
    weight = slots[1]
    assert weight.parameters == ("m.weight0", "m.weight1", "m.weight2")
    assert weight.shape == (48, 32)


def test_experts_of_unequal_roles_stay_apart():
    class Numbered(M.GroupedLinear):
        def get_quantizer_roles(self, *, fwd, num_quantizers):
            return [QuantizerRole("grouped_linear", "x", str(i)) for i in range(num_quantizers)]

    slots = Numbered(2, 32, 32).quantizer_slots("m")
    assert [slot.copies for slot in slots] == [1] * 10


def test_modules_without_a_list_of_roles_have_bare_ones():
    (slot,) = ops.Quantize().quantizer_slots("m")
    assert slot.bare
    assert slot.role == QuantizerRole()


def test_every_module_with_slots_describes_them():
    for module in (M.Linear(8, 8), M.DotProductAttention(4, 8), ops.BasicLinear(8, 8), ops.GELU()):
        assert isinstance(module, EmitsSlots)


def test_a_plan_asks_in_the_order_in_which_the_modules_ask():
    """The inventory's slots, experts unfolded, are what a forward and backward pass asks for."""
    import torch

    from qrole.autocasting import autocast
    from qrole.recipes import CustomRecipe

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = M.TransformerLayer(64, 64, 4, name="tl")
            self.experts = M.GroupedLinear(2, 64, 64, name="experts")
            self.head = ops.Sequential(ops.Linear(64, 64), ops.GELU())

        def forward(self, x):
            x = self.experts(self.layer(x), [32, 32])
            return self.head(x)

    def recorder(asked):
        def factory(role):
            asked.append(role)
            return mxfp8_factory(role)

        return factory

    model, planned, ran = Model(), [], []
    build_plan(walk(model), Factory.of(recorder(planned)))
    with autocast(recipe=CustomRecipe(recorder(ran))):
        model(torch.randn(32, 2, 64))

    def by_name(roles):
        """Roles of a layer in order; layers run in another order than they are listed in."""
        names = dict.fromkeys("" if role is None else role.name for role in roles)
        return {n: [r for r in roles if (r.name if r else "") == n] for n in sorted(names)}

    assert len(planned) == len(ran)
    assert by_name(planned) == by_name(ran)
