"""Attention of foreign modules by the plan's six quantizers, against what the slots say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from qrole.dtypes import DType
from qrole.emitters import EmitOptions, walk
from qrole.emitters.base import Emitter, attention_slots, class_name
from qrole.errors import OperandError, UsageError
from qrole.execute import Observer, PlanState, executing
from qrole.plans import Plan, build_plan
from qrole.plugins import Factory, load_factory
from qrole.quantizers import (
    Float8CurrentScalingQuantizer,
    IdentityQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
)
from qrole.quantizers.base import Quantizer
from qrole.recipes import Format
from qrole.roles import DelayedScalingRequest, QuantizerRole, Slot
from tests.runtime.execute.conftest import plan_of, randn

B, H, S, D = 2, 4, 32, 32
SCALE = D**-0.5
BACKWARD = ("do", "dp")
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class _Attention(nn.Module):
    """Attention that is computed as a function likes."""

    def __init__(self, compute: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.compute(q, k, v)


class _Emitter(Emitter):
    name = "test"

    def slots(self, path: str, module: nn.Module, options: EmitOptions) -> list[Slot] | None:
        if isinstance(module, _Attention) and options.attention:
            return attention_slots(path, class_name(module), name="att")
        return None


def _is_backward(role: QuantizerRole) -> bool:
    return role.tensor_type in BACKWARD or role.name.endswith("grad_input")


def _current(role: QuantizerRole) -> Quantizer:
    element = DType.kFloat8E5M2 if _is_backward(role) else DType.kFloat8E4M3
    return Float8CurrentScalingQuantizer(element, device="cpu")


def _mxfp8(role: QuantizerRole) -> Quantizer:
    return MXFP8Quantizer(DType.kFloat8E4M3)


def _plan(module: nn.Module, factory: Callable[[QuantizerRole], Any]) -> Plan:
    inventory = walk(module, EmitOptions(attention=True), emitters=[_Emitter()])
    return build_plan(inventory, Factory.of(factory))


def _inputs(groups: int = H, *, queries: int = S, dtype: torch.dtype = torch.float32) -> Inputs:
    shapes = ((B, H, queries, D), (B, groups, S, D), (B, groups, S, D))
    q, k, v = (randn(*shape, seed=i).to(dtype).requires_grad_() for i, shape in enumerate(shapes))
    return q, k, v


def _run(
    compute: Callable[..., torch.Tensor],
    factory: Callable[[QuantizerRole], Any],
    inputs: Inputs,
    observer: Observer | None = None,
) -> list[torch.Tensor]:
    """The result and the three gradients."""
    module = _Attention(compute)
    with executing(module, _plan(module, factory), observer=observer) as run:
        y = module(*inputs)
        grads = torch.autograd.grad(y, inputs, randn(*y.shape, seed=5).to(y.dtype))
    assert run.never_ran() == []
    assert run.readers == {}
    return [y.detach(), *grads]


def _sdpa(**options: Any) -> Callable[..., torch.Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


def _e4m3(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x * scale).to(torch.float8_e4m3fn).float() / scale


def _e5m2(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x * scale).to(torch.float8_e5m2).float() / scale


def _rounded(*tensors: torch.Tensor, gradient: bool = False) -> list[torch.Tensor]:
    """FP8 with one scale for all of them, in plain torch."""
    most, to = (57344.0, _e5m2) if gradient else (448.0, _e4m3)
    amax = max(x.abs().max() for x in tensors)
    return [to(x, most / amax) for x in tensors]


def _expected(
    inputs: Inputs, dy: torch.Tensor, *, bias: torch.Tensor | float = 0.0, scale: float = SCALE
) -> list[torch.Tensor]:
    """Current scaling in every slot; -inf in the bias masks."""
    q, k, v = _rounded(*(x.detach().float() for x in inputs))
    times = q.shape[1] // k.shape[1]
    heads = lambda x: x.repeat_interleave(times, dim=1)  # noqa: E731
    groups = lambda x: x.unflatten(1, (-1, times)).sum(2)  # noqa: E731
    weights = torch.softmax(q @ heads(k).mT * scale + bias, -1)
    (s,) = _rounded(weights)
    (out,) = _rounded(s @ heads(v))
    (do,) = _rounded(dy.float(), gradient=True)
    dv, dp = s.mT @ do, do @ heads(v).mT
    ds = weights * (dp - (dp * weights).sum(-1, keepdim=True))
    (ds,) = _rounded(ds, gradient=True)
    dq, dk = ds @ heads(k) * scale, ds.mT @ q * scale
    return [out, *_rounded(dq, groups(dk), groups(dv), gradient=True)]


def _assert_same(
    found: list[torch.Tensor], expected: list[torch.Tensor], most: float = 0.02
) -> None:
    """Equal but for the order of sums, which moves an element by one step of FP8 at most."""
    torch.testing.assert_close(found[0].float(), expected[0].float(), rtol=0.13, atol=1e-6)
    for given, wanted in zip(found, expected, strict=True):
        assert (given - wanted).norm() < most * wanted.norm()


def _causal(queries: int = S) -> torch.Tensor:
    return torch.zeros(queries, S).masked_fill(torch.ones(queries, S).triu(1).bool(), -math.inf)


ALIBI = -0.1 * (torch.arange(S).view(-1, 1) - torch.arange(S)).abs().float()
BOOLEAN = torch.rand(B, 1, S, S, generator=torch.Generator().manual_seed(3)) < 0.7


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"is_causal": True}, {"bias": _causal()}),
        (
            {"attn_mask": BOOLEAN},
            {"bias": torch.zeros(B, 1, S, S).masked_fill(~BOOLEAN, -math.inf)},
        ),
        ({"attn_mask": ALIBI + _causal()}, {"bias": ALIBI + _causal()}),
        ({"scale": 0.3}, {"scale": 0.3}),
    ],
    ids=["plain", "causal", "boolean mask", "additive mask", "scale"],
)
def test_in_one_call(options: dict[str, Any], expected: dict[str, Any]) -> None:
    inputs = _inputs()
    found = _run(_sdpa(**options), _current, inputs)
    _assert_same(found, _expected(inputs, randn(B, H, S, D, seed=5), **expected))


def test_groups_in_one_call() -> None:
    inputs = _inputs(groups=2, queries=16)
    found = _run(_sdpa(enable_gqa=True, is_causal=True), _current, inputs)
    dy = randn(B, H, 16, D, seed=5)
    _assert_same(found, _expected(inputs, dy, bias=_causal(16)))


def test_mxfp8_reads_the_blocks_that_each_product_sums_over() -> None:
    inputs = _inputs()
    found = _run(_sdpa(), _mxfp8, inputs)

    def hat(x: torch.Tensor, direction: str = "rowwise") -> torch.Tensor:
        made = MXFP8Quantizer(DType.kFloat8E4M3)(x.detach().reshape(-1, x.shape[-1]))
        return made.dequantize(torch.float32, direction).view(x.shape)

    q, k, v = inputs
    weights = torch.softmax(hat(q) @ hat(k).mT * SCALE, -1)
    torch.testing.assert_close(found[0], hat(weights @ hat(v, "columnwise")), rtol=0.07, atol=0)
    do = randn(B, H, S, D, seed=5)
    dv, dp = weights.mT @ hat(do, "columnwise"), hat(do) @ hat(v).mT
    ds = weights * (dp - (dp * weights).sum(-1, keepdim=True)) * SCALE
    expected = [hat(ds @ hat(k, "columnwise")), hat(ds.mT @ hat(q, "columnwise")), hat(dv)]
    for given, wanted in zip(found[1:], expected, strict=True):
        torch.testing.assert_close(given, wanted, rtol=0.13, atol=1e-4)


def _eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    times = q.shape[1] // k.shape[1]
    if times > 1:
        k, v = (
            x[:, :, None].expand(B, x.shape[1], times, S, D).reshape(B, H, S, D) for x in (k, v)
        )
    logits = torch.matmul(q, k.transpose(2, 3)) * SCALE + _causal(q.shape[2])
    weights = F.softmax(logits, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(F.dropout(weights, 0.5, training=False), v)


def _interleaved(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (torch.repeat_interleave(x, H // x.shape[1], dim=1) for x in (k, v))
    logits = q @ k.mT
    logits *= SCALE
    logits += _causal(q.shape[2])
    return logits.softmax(-1) @ v


def _flat(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (x.repeat_interleave(H // x.shape[1], 1) for x in (k, v))
    mask = _causal(q.shape[2]).expand(B * H, -1, -1)
    q3, k3, v3 = (x.flatten(0, 1) for x in (q, k, v))
    logits = mask.baddbmm(batch1=q3, batch2=k3.transpose(1, 2), alpha=SCALE)
    return torch.bmm(torch.softmax(logits, dim=-1), v3).view_as(q)


def _written_in_place(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (x.repeat_interleave(H // x.shape[1], dim=1) for x in (k, v))
    logits = torch.matmul(q, k.mT).mul_(SCALE)
    logits[..., torch.isneginf(_causal(q.shape[2]))] = -math.inf
    return logits.softmax(-1).matmul(v)


def _with_a_sink_of_nothing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (x.repeat_interleave(H // x.shape[1], dim=1) for x in (k, v))
    logits = torch.matmul(q, k.mT) * SCALE + _causal(q.shape[2])
    logits = torch.cat([logits, torch.full_like(logits[..., :1], -1e30)], dim=-1)
    logits = logits - logits.detach().max(dim=-1, keepdim=True).values
    return logits.softmax(-1)[..., :-1] @ v


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("factory", [_current, _mxfp8])
@pytest.mark.parametrize(
    "written", [_eager, _interleaved, _written_in_place, _with_a_sink_of_nothing]
)
def test_written_out_is_as_in_one_call(
    written: Callable[..., torch.Tensor], factory: Callable[[QuantizerRole], Any], groups: int
) -> None:
    inputs = _inputs(groups)
    once = _run(_sdpa(is_causal=True, enable_gqa=True), factory, inputs)
    _assert_same(_run(written, factory, inputs), once)


def test_batches_and_heads_as_one_dimension() -> None:
    inputs = _inputs()
    _assert_same(_run(_flat, _current, inputs), _run(_sdpa(is_causal=True), _current, inputs))


def _dropped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.dropout(torch.softmax(q @ k.mT * SCALE, -1), 0.5) @ v


@pytest.mark.parametrize("compute", [_sdpa(dropout_p=0.5), _dropped], ids=["one call", "written"])
def test_dropout(compute: Callable[..., torch.Tensor]) -> None:
    """The same elements are dropped as without the plan, and random numbers are drawn once."""
    inputs = _inputs()
    torch.manual_seed(0)
    found = _run(compute, _current, inputs)
    after = torch.rand(1)
    torch.manual_seed(0)
    mask = F.dropout(torch.ones(B, H, S, S), 0.5)
    assert torch.equal(after, torch.rand(1))
    q, k, v = _rounded(*(x.detach() for x in inputs))
    (s,) = _rounded(torch.softmax(q @ k.mT * SCALE, -1) * mask)
    torch.testing.assert_close(found[0], _rounded(s @ v)[0], rtol=0.13, atol=1e-5)
    (do,) = _rounded(randn(B, H, S, D, seed=5), gradient=True)
    assert (found[3] - s.mT @ do).norm() < 0.08 * found[3].norm()


def test_bf16_is_fp32_between_the_quantizations() -> None:
    inputs = _inputs(dtype=torch.bfloat16)
    dy = randn(B, H, S, D, seed=5).bfloat16()
    for compute in (_sdpa(is_causal=True), _eager):
        found = _run(compute, _current, inputs)
        assert {x.dtype for x in found} == {torch.bfloat16}
        for given, wanted in zip(found, _expected(inputs, dy, bias=_causal()), strict=True):
            assert (given.float() - wanted).norm() < 0.05 * wanted.norm()


def test_autocast_casts_as_products_do() -> None:
    inputs = _inputs()

    def under(compute: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def computed(*given: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return compute(*given)

        return computed

    found = [_run(under(compute), _current, inputs) for compute in (_sdpa(is_causal=True), _eager)]
    assert found[0][0].dtype == found[1][0].dtype == torch.bfloat16
    _assert_same(found[0], found[1])


class _Told(Observer):
    def __init__(self) -> None:
        self.operands: Counter[str] = Counter()
        self.outputs: list[tuple[str, tuple[int, ...]]] = []

    def operand(self, slot: Slot, copy: int, tensor, quantized) -> None:  # type: ignore[no-untyped-def]
        self.operands[slot.operand] += 1

    def output(self, layer, copy, output_MN) -> None:  # type: ignore[no-untyped-def]
        self.outputs.append((layer.name, tuple(output_MN.shape)))


@pytest.mark.parametrize("compute", [_sdpa(is_causal=True), _eager], ids=["one call", "written"])
def test_observers_are_told_of_every_slot(compute: Callable[..., torch.Tensor]) -> None:
    told = {factory: _Told() for factory in (_current, _mxfp8)}
    for factory, observer in told.items():
        _run(compute, factory, _inputs(), observer)
        assert observer.outputs == [("attention", (B * H * S, D))]
    assert told[_current].operands == dict.fromkeys(("qkv", "s", "o", "do", "dp", "dqkv"), 1)
    assert told[_mxfp8].operands == {"qkv": 3, "o": 1, "do": 1, "dqkv": 3}


@pytest.mark.parametrize("compute", [_sdpa(is_causal=True), _eager], ids=["one call", "written"])
def test_high_precision_is_the_model_itself_and_told_of(
    compute: Callable[..., torch.Tensor],
) -> None:
    inputs, told = _inputs(), _Told()
    found = _run(compute, lambda role: IdentityQuantizer(), inputs, told)
    y = compute(*inputs)
    plain = [y, *torch.autograd.grad(y, inputs, randn(*y.shape, seed=5))]
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    assert told.outputs == [("attention", (B * H * S, D))]


@pytest.mark.parametrize("tensor", ["qkv", "s", "do", "dp"])
def test_one_tensor_alone(tensor: str) -> None:
    """What-ifs leave the other slots in high precision, which FP8 kernels cannot do."""

    def factory(role: QuantizerRole) -> Quantizer:
        return _current(role) if role.tensor_type == tensor else IdentityQuantizer()

    inputs, told = _inputs(), _Told()
    found = _run(_sdpa(), factory, inputs, told)
    assert told.operands == {tensor: 1}
    plain = _run(_sdpa(), lambda role: IdentityQuantizer(), inputs)
    changed = [
        not torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(found, plain, strict=True)
    ]
    y, dq, dk, dv = changed
    assert y == (tensor in ("qkv", "s"))
    assert dq == dk == (tensor in ("qkv", "do", "dp"))
    assert dv == (tensor in ("qkv", "s", "do"))


def test_formats_that_attention_cannot_use_are_refused() -> None:
    with pytest.raises(OperandError, match="dP quantizer is NVFP4Quantizer"):
        _run(
            _sdpa(), lambda r: NVFP4Quantizer() if r.tensor_type == "dp" else _current(r), _inputs()
        )


def test_delayed_scaling_goes_from_step_to_step() -> None:
    def factory(role: QuantizerRole) -> Any:
        if role.tensor_type in ("s", "dp"):
            return DelayedScalingRequest(Format.HYBRID, amax_history_len=1)
        return _current(role)

    module, inputs = _Attention(_sdpa()), _inputs()
    plan = _plan(module, factory)
    state = PlanState(plan)
    for _ in range(2):
        with executing(module, plan, state=state):
            module(*inputs).sum().backward()
    forward, backward = state.buffers
    weights = torch.softmax(inputs[0] @ inputs[1].mT * SCALE, -1)
    torch.testing.assert_close(forward.scale[2], 448 / weights.max().detach(), rtol=0.02, atol=0)
    assert float(backward.scale[1]) > 1


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
@pytest.mark.parametrize("compute", [_sdpa(is_causal=True), _eager], ids=["one call", "written"])
def test_checkpointing(compute: Callable[..., torch.Tensor], reentrant: bool) -> None:
    module, inputs, steps = _Attention(compute), _inputs(), []
    plan = _plan(module, _current)
    for checkpointed in (False, True):
        told = _Told()
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
    inputs, expected = _inputs(), _run(_sdpa(is_causal=True), _current, _inputs())[0]
    for context in (torch.no_grad, torch.inference_mode):
        for compute in (_sdpa(is_causal=True), _eager):
            module = _Attention(compute)
            with context(), executing(module, _plan(module, _current)):
                torch.testing.assert_close(module(*inputs), expected, rtol=0.13, atol=1e-6)


def test_writes_in_inference_mode() -> None:
    """Such tensors do not tell of writes through their views."""
    module, inputs = _Attention(_written_in_place), _inputs()
    with torch.inference_mode(), executing(module, _plan(module, _current)) as run:
        y = module(*inputs)
        assert torch.equal(y, _written_in_place(*inputs))
    assert list(run.readers.values()) == [{"attention weights written to in inference mode"}]


def test_the_backward_pass_belongs_inside() -> None:
    module = _Attention(_sdpa())
    with executing(module, _plan(module, _current)):
        loss = module(*_inputs()).sum()
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
    module, inputs, told = _Attention(compute), _inputs(), _Told()
    torch.manual_seed(0)
    plain = module(*inputs)
    torch.manual_seed(0)
    with executing(module, _plan(module, _current), observer=told) as run:
        y = module(*inputs)
    assert torch.equal(y, plain)
    assert [layer.name for layer in run.never_ran()] == ["attention"]
    assert [names for _, names in run.readers.items()] == ([{reason}] if reason else [])
    assert not told.operands


@pytest.mark.parametrize("weights", [False, True], ids=["one call", "weights wanted"])
@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
def test_multihead_attention_of_torch(weights: bool, masked: bool) -> None:
    module = nn.MultiheadAttention(64, 4, batch_first=True)
    mask = _causal() if masked else None
    inventory = walk(module, EmitOptions(attention=True))
    factory = load_factory("current_scaling")
    x, told = randn(2, S, 64, seed=1), _Told()
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
    module, told = nn.MultiheadAttention(64, 4, batch_first=True), _Told()
    x = randn(2, S, 64, seed=1)
    with executing(module, plan_of(module, "current_scaling"), observer=told) as run:
        module(x, x, x)
    assert run.never_ran() == []
    assert set(told.operands) == {"input", "weight"}
