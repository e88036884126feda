"""Attention of foreign modules in a run: who is told, and what is left as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from qrole.emitters import EmitOptions, walk
from qrole.errors import OperandError, UsageError
from qrole.execute import PlanState, executing
from qrole.plans import build_plan
from qrole.plugins import load_factory
from qrole.quantizers import (
    IdentityQuantizer,
    NVFP4Quantizer,
)
from qrole.quantizers.base import Quantizer
from qrole.recipes import Format
from qrole.roles import DelayedScalingRequest, QuantizerRole
from tests.runtime.execute.attention import (
    SCALE,
    Attention,
    B,
    D,
    H,
    S,
    Told,
    attention_plan,
    causal,
    current,
    eager,
    mxfp8,
    qkv,
    sdpa,
    step,
    written_in_place,
)
from tests.runtime.execute.conftest import plan_of, randn


@pytest.mark.parametrize("compute", [sdpa(is_causal=True), eager], ids=["one call", "written"])
def test_observers_are_told_of_every_slot(compute: Callable[..., torch.Tensor]) -> None:
    told = {factory: Told() for factory in (current, mxfp8)}
    for factory, observer in told.items():
        step(compute, factory, qkv(), observer)
        assert observer.outputs == [("attention", (B * H * S, D))]
    assert told[current].operands == dict.fromkeys(("qkv", "s", "o", "do", "dp", "dqkv"), 1)
    assert told[mxfp8].operands == {"qkv": 3, "o": 1, "do": 1, "dqkv": 3}


@pytest.mark.parametrize("compute", [sdpa(is_causal=True), eager], ids=["one call", "written"])
def test_high_precision_is_the_model_itself_and_told_of(
    compute: Callable[..., torch.Tensor],
) -> None:
    inputs, told = qkv(), Told()
    found = step(compute, lambda role: IdentityQuantizer(), inputs, told)
    y = compute(*inputs)
    plain = [y, *torch.autograd.grad(y, inputs, randn(*y.shape, seed=5))]
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    assert told.outputs == [("attention", (B * H * S, D))]


@pytest.mark.parametrize("tensor", ["qkv", "s", "do", "dp"])
def test_one_tensor_alone(tensor: str) -> None:
    """What-ifs leave the other slots in high precision, which FP8 kernels cannot do."""

    def factory(role: QuantizerRole) -> Quantizer:
        return current(role) if role.tensor_type == tensor else IdentityQuantizer()

    inputs, told = qkv(), Told()
    found = step(sdpa(), factory, inputs, told)
    assert told.operands == {tensor: 1}
    plain = step(sdpa(), lambda role: IdentityQuantizer(), inputs)
    changed = [
        not torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(found, plain, strict=True)
    ]
    y, dq, dk, dv = changed
    assert y == (tensor in ("qkv", "s"))
    assert dq == dk == (tensor in ("qkv", "do", "dp"))
    assert dv == (tensor in ("qkv", "s", "do"))


def test_formats_that_attention_cannot_use_are_refused() -> None:
    with pytest.raises(OperandError, match="dP quantizer is NVFP4Quantizer"):
        step(sdpa(), lambda r: NVFP4Quantizer() if r.tensor_type == "dp" else current(r), qkv())


def test_delayed_scaling_goes_from_step_to_step() -> None:
    def factory(role: QuantizerRole) -> Any:
        if role.tensor_type in ("s", "dp"):
            return DelayedScalingRequest(Format.HYBRID, amax_history_len=1)
        return current(role)

    module, inputs = Attention(sdpa()), qkv()
    plan = attention_plan(module, factory)
    state = PlanState(plan)
    for _ in range(2):
        with executing(module, plan, state=state):
            module(*inputs).sum().backward()
    forward, backward = state.buffers
    weights = torch.softmax(inputs[0] @ inputs[1].mT * SCALE, -1)
    torch.testing.assert_close(forward.scale[2], 448 / weights.max().detach(), rtol=0.02, atol=0)
    assert float(backward.scale[1]) > 1


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
@pytest.mark.parametrize("compute", [sdpa(is_causal=True), eager], ids=["one call", "written"])
def test_checkpointing(compute: Callable[..., torch.Tensor], reentrant: bool) -> None:
    module, inputs, steps = Attention(compute), qkv(), []
    plan = attention_plan(module, current)
    for checkpointed in (False, True):
        told = Told()
        with executing(module, plan, observer=told) as run:
            y = (
                checkpoint(module, *inputs, use_reentrant=reentrant)
                if checkpointed
                else module(*inputs)
            )
            y.backward(randn(*y.shape, seed=5))
        assert list(run.rows.values()) == [B * H * S]
        assert told.operands == dict.fromkeys(("qkv", "s", "o", "do", "dp", "dqkv"), 1)
        steps.append([x.grad for x in inputs if x.grad is not None])
        for x in inputs:
            x.grad = None
    assert all(torch.equal(a, b) for a, b in zip(*steps, strict=True))


def test_without_gradients() -> None:
    inputs, expected = qkv(), step(sdpa(is_causal=True), current, qkv())[0]
    for context in (torch.no_grad, torch.inference_mode):
        for compute in (sdpa(is_causal=True), eager):
            module = Attention(compute)
            with context(), executing(module, attention_plan(module, current)):
                torch.testing.assert_close(module(*inputs), expected, rtol=0.13, atol=1e-6)


def test_writes_in_inference_mode() -> None:
    """Such tensors do not tell of writes through their views."""
    module, inputs = Attention(written_in_place), qkv()
    with torch.inference_mode(), executing(module, attention_plan(module, current)) as run:
        y = module(*inputs)
        assert torch.equal(y, written_in_place(*inputs))
    assert list(run.readers.values()) == [{"attention weights written to in inference mode"}]


def test_the_backward_pass_belongs_inside() -> None:
    module = Attention(sdpa())
    with executing(module, attention_plan(module, current)):
        loss = module(*qkv()).sum()
    with pytest.raises(UsageError, match="ran after the plan's context was left"):
        loss.backward()


def _plus_another(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q3, k3, v3 = (x.flatten(0, 1) for x in (q, k, v))
    logits = torch.baddbmm(torch.bmm(q3, k3.flip(1).mT), q3, k3.mT)
    return torch.bmm(torch.softmax(logits, -1), v3).view_as(q)


def _kept_after_a_write(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    logits = q @ k.mT
    logits.view(-1).mul_(0.5)
    return torch.softmax(logits.contiguous(), -1) @ v


def _mixed_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights, mixer = torch.softmax(q @ k.mT, -1), torch.eye(H).expand(B, H, H)
    return (mixer @ weights.flatten(2)).view_as(weights) @ v


def _two_products(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT + q @ k.flip(-2).mT, -1) @ v


def _einsum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.einsum("bhqk,bhkd->bhqd", torch.softmax(q @ k.mT, -1), v)


def _dropped_in_place(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.dropout(torch.softmax(q @ k.mT, -1), 0.1, inplace=True) @ v


def _into_a_buffer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The model's own tensor would be written to twice."""
    buffer = torch.zeros(B, H, S, S)
    buffer[:] = q @ k.mT
    return torch.softmax(buffer, -1) @ v


def _changed_through_a_view(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    logits = q @ k.mT
    logits.view(-1).mul_(0.5)
    return torch.softmax(logits, -1) @ v


class _Exponential(torch.autograd.Function):
    """Its gradient is not that of what it computes."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        return torch.softmax(logits, -1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(grad)


def _own_function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _Exponential.apply(q @ k.mT) @ v  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (_own_function, ""),
        (_plus_another, ""),
        (_kept_after_a_write, ""),
        (_dropped_in_place, "dropout_"),
        (_two_products, "attention weights made of several products"),
        (_einsum, "einsum of the attention weights"),
        (_mixed_heads, ""),
        (_into_a_buffer, ""),
        (_changed_through_a_view, ""),
    ],
)
def test_what_cannot_be_computed_is_as_it_was_and_said(
    compute: Callable[..., torch.Tensor], reason: str
) -> None:
    module, inputs, told = Attention(compute), qkv(), Told()
    torch.manual_seed(0)
    plain = module(*inputs)
    torch.manual_seed(0)
    with executing(module, attention_plan(module, current), observer=told) as run:
        y = module(*inputs)
    assert torch.equal(y, plain)
    assert [layer.name for layer in run.never_ran()] == ["attention"]
    assert [names for _, names in run.readers.items()] == ([{reason}] if reason else [])
    assert not told.operands


@pytest.mark.parametrize("weights", [False, True], ids=["one call", "weights wanted"])
@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
def test_multihead_attention_of_torch(weights: bool, masked: bool) -> None:
    module = nn.MultiheadAttention(64, 4, batch_first=True)
    mask = causal() if masked else None
    inventory = walk(module, EmitOptions(attention=True))
    factory = load_factory("current_scaling")
    x, told = randn(2, S, 64, seed=1), Told()
    found = []
    for need in (weights, False):
        with executing(module, build_plan(inventory, factory), observer=told) as run:
            y, _ = module(x, x, x, need_weights=need, attn_mask=mask)
            y.sum().backward()
        assert run.never_ran() == []
        found.append(y)
    assert told.operands["qkv"] == told.operands["dqkv"] == 2
    torch.testing.assert_close(*found, rtol=0.02, atol=0.04)  # Written out, q is scaled first.


def test_attention_that_was_not_asked_for_is_left_alone() -> None:
    module, told = nn.MultiheadAttention(64, 4, batch_first=True), Told()
    x = randn(2, S, 64, seed=1)
    with executing(module, plan_of(module, "current_scaling"), observer=told) as run:
        module(x, x, x)
    assert run.never_ran() == []
    assert set(told.operands) == {"input", "weight"}
