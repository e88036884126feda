"""Slots of torch's own layers."""

from __future__ import annotations

import torch
from torch import nn

from qrole.emitters import EmitOptions, walk_module
from qrole.roles import Direction, QuantizerRole


def test_linear_has_two_forward_slots_and_one_backward():
    found = walk_module(nn.Sequential(nn.Linear(8, 4)), "m")
    assert [(s.id, s.role) for s in found.slots] == [
        ("0:forward[0]", QuantizerRole("linear", "input", "0")),
        ("0:forward[1]", QuantizerRole("linear", "weight", "0")),
        ("0:backward[0]", QuantizerRole("linear", "grad_output", "0")),
    ]
    assert found.slots[1].shape == (4, 8)
    assert found.slots[1].parameters == ("0.weight",)


def test_a_bare_linear_is_a_model_too():
    found = walk_module(nn.Linear(8, 4), "m")
    assert found.slots[1].parameters == ("weight",)
    assert found.slots[0].id == ".:forward[0]"


def test_packed_attention_owns_both_projections():
    found = walk_module(nn.MultiheadAttention(16, 2), "m")
    weights = {s.group: (s.shape, s.parameters) for s in found.slots if s.operand == "weight"}
    assert weights == {
        "in_proj": ((48, 16), ("in_proj_weight",)),
        "out_proj": ((16, 16), ("out_proj.weight",)),
    }
    assert [s.index for s in found.slots if s.direction is Direction.FORWARD] == [0, 1, 2, 3]


def test_separate_projections_of_attention():
    found = walk_module(nn.MultiheadAttention(16, 2, kdim=8, vdim=4), "m")
    shapes = {s.group: s.shape for s in found.slots if s.operand == "weight"}
    assert shapes == {
        "q_proj": (16, 16),
        "k_proj": (16, 8),
        "v_proj": (16, 4),
        "out_proj": (16, 16),
    }


def test_attention_slots_follow_the_linear_ones():
    found = walk_module(nn.MultiheadAttention(16, 2), "m", EmitOptions(attention=True))
    ids = [s.id for s in found.slots]
    assert len(ids) == len(set(ids)) == 6 + 15


def test_shared_module_counts_once_and_is_noted():
    layer = nn.Linear(4, 4)
    found = walk_module(nn.ModuleDict({"a": layer, "b": layer}), "m")
    assert {s.module for s in found.slots} == {"a"}
    assert found.notes == ("b is the module a again; its slots count once",)


def test_tied_parameter_is_covered_by_its_twin():
    embedding, head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
    head.weight = embedding.weight
    found = walk_module(nn.ModuleDict({"embed": embedding, "head": head}), "m")
    assert found.tied == (("embed.weight", "head.weight"),)
    assert found.uncovered == ()
    assert found.numel == 40


def test_uncovered_parameters_say_why():
    model = nn.ModuleDict(
        {"conv": nn.Conv1d(2, 2, 3), "rnn": nn.GRU(4, 4), "norm": nn.LayerNorm(4)}
    )
    reasons = {
        (u.module, u.reason.split(":")[0]): u.quantizable for u in walk_module(model, "m").uncovered
    }
    assert reasons == {
        ("conv", "convolution"): True,
        ("conv", "bias"): False,
        ("rnn", "recurrent layer"): True,
        ("rnn", "norm or other vector"): False,
        ("norm", "norm or other vector"): False,
        ("norm", "bias"): False,
    }


def test_meta_device_costs_nothing():
    with torch.device("meta"):
        model = nn.Linear(1 << 20, 1 << 20)
    assert walk_module(model, "m").numel == (1 << 40) + (1 << 20)
