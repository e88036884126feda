"""The factory is asked once per slot and copy, in slot order, and its mistakes are named."""

from __future__ import annotations

import warnings

import pytest
from torch import nn

from qrole.dtypes import DType
from qrole.emitters import linear_slots, walk_module
from qrole.errors import FactoryError, NothingMatchedError, UnknownNameError
from qrole.plans import Inventory, PlanWarning, build_plan
from qrole.plugins import Factory
from qrole.quantizers import IdentityQuantizer, MXFP8Quantizer
from qrole.roles import DelayedScalingRequest
from qrole.summary import summarize


def _recording(calls):
    def factory(role):
        calls.append(None if role is None else role.tensor_type)
        return IdentityQuantizer()

    return Factory.of(factory)


def test_slot_order():
    calls = []
    build_plan(walk_module(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), "m"), _recording(calls))
    assert calls == ["input", "weight", "grad_output"] * 2


def test_experts_are_asked_for_copy_by_copy():
    slots = linear_slots("experts", "", weight="w", shape=(4, 4), copies=2, group="up_proj")
    calls = []
    plan = build_plan(Inventory("m", tuple(slots)), _recording(calls))
    assert calls == ["input", "weight"] * 2 + ["grad_output"] * 2
    assert [len(decision.answers) for decision in plan] == [2, 2, 2]
    assert plan.counts().total() == 6


def test_no_slots():
    with pytest.raises(NothingMatchedError, match="no module that emits a role"):
        build_plan(Inventory("m", ()), _recording([]))


def test_errors_can_be_collected():
    def factory(role):
        if role.tensor_type == "weight":
            raise KeyError("w")
        return None if role.tensor_type == "grad_output" else IdentityQuantizer()

    inventory = walk_module(nn.Linear(4, 4), "m")
    with pytest.raises(FactoryError, match="raised KeyError for slot"):
        build_plan(inventory, Factory.of(factory))
    plan = build_plan(inventory, Factory.of(factory), collect_errors=True)
    assert [bool(d.error) for d in plan] == [False, True, True]


def test_decisions_by_id_and_by_layer():
    plan = build_plan(walk_module(nn.Sequential(nn.Linear(4, 4)), "m"), _recording([]))
    assert plan.decision("0:forward[1]").slot.operand == "weight"
    assert set(plan.of_module("0")) == {"input", "weight", "grad_output"}
    with pytest.raises(UnknownNameError, match=r"did you mean '0:forward\[1\]'"):
        plan.decision("0:forward[11]")


def test_a_request_has_a_format_per_direction():
    plan = build_plan(
        walk_module(nn.Linear(4, 4), "m"), Factory.of(lambda role: DelayedScalingRequest())
    )
    assert [d.rowwise.element for d in plan] == ["e4m3", "e4m3", "e5m2"]


def test_summary_counts_work_per_gemm_and_pair():
    plan = build_plan(walk_module(nn.Linear(4, 2, bias=False), "m"), _recording([]))
    summary = summarize(plan)
    assert [(t.label, t.tensors, t.numel, t.nbytes) for t in summary.formats] == [
        ("high precision", 1, 8, 16)
    ]
    assert [(t.gemm, t.macs) for t in summary.gemms] == [("fprop", 8), ("dgrad", 8), ("wgrad", 8)]


def test_factory_that_exits_does_not_end_the_process():
    def factory(role):
        raise SystemExit(9)

    inventory = walk_module(nn.Linear(4, 4), "m")
    with pytest.raises(FactoryError, match="raised SystemExit for slot"):
        build_plan(inventory, Factory.of(factory))


def test_wrong_option_is_named_with_the_users_line():
    def factory(role):
        return MXFP8Quantizer(DType.kFloat4E2M1)

    inventory = walk_module(nn.Linear(4, 4), "m")
    with pytest.raises(FactoryError, match="raised ConfigError for slot") as caught:
        build_plan(inventory, Factory.of(factory))
    assert caught.value.hint == "pass one of the two FP8 types"
    assert "return MXFP8Quantizer(DType.kFloat4E2M1)" in caught.value.traceback
    assert "mxfp8.py" not in caught.value.traceback


def test_what_a_factory_warns_of_is_heard():
    def factory(role):
        warnings.warn(f"{role.tensor_type} is odd", UserWarning, stacklevel=1)
        return IdentityQuantizer()

    with pytest.warns(PlanWarning, match="is odd"):
        plan = build_plan(walk_module(nn.Linear(4, 4), "m"), Factory.of(factory))
    assert plan.warnings == ("input is odd", "weight is odd", "grad_output is odd")
