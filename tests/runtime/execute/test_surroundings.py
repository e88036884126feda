"""Runs work within what training adds to a model, and leave the model as it was."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from qrole.emitters import walk
from qrole.errors import UsageError
from qrole.execute import Observer, PlanState, WeightCache, executing
from qrole.plans import build_plan
from qrole.plugins import Factory
from qrole.quantizers import IdentityQuantizer, MXFP8Quantizer
from qrole.roles import Slot
from tests.runtime.execute.conftest import plan_of, products, randn


def _mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 32))


def _step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Loss and gradients of one step, gradients cleared afterwards."""
    loss = model(x).square().sum()
    loss.backward()
    found = [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    model.zero_grad()
    return found


def _assert_equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a, b)


class _Told(Observer):
    wants_operands = True

    def __init__(self) -> None:
        self.operands: Counter[str] = Counter()
        self.representations: Counter[tuple[str, str]] = Counter()
        self.products: Counter[tuple[str, str]] = Counter()

    def operand(self, slot: Slot, copy: int, tensor, quantized) -> None:  # type: ignore[no-untyped-def]
        self.operands[slot.id] += 1
        for usage in ("rowwise", "columnwise"):
            self.representations[(slot.id, usage)] += getattr(quantized, usage) is not None

    def product(self, layer, gemm, copy, left, right, result, bias) -> None:  # type: ignore[no-untyped-def]
        self.products[(layer.name, gemm.value)] += 1
        assert (left @ right).shape == result.shape


def test_the_model_is_as_before() -> None:
    model, x = _mlp(), randn(16, 64, seed=1)
    before = _step(model, x)
    names = {name: set(module.__dict__) for name, module in model.named_modules()}
    with executing(model, plan_of(model, "nvfp4")):
        during = _step(model, x)
    assert not torch.equal(before[0], during[0])
    _assert_equal(_step(model, x), before)
    assert {name: set(module.__dict__) for name, module in model.named_modules()} == names
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_the_model_is_as_before_after_an_exception() -> None:
    model, x = _mlp(), randn(16, 64, seed=1)
    before = _step(model, x)
    plan = plan_of(model, "nvfp4")
    with pytest.raises(RuntimeError, match="shapes"), executing(model, plan):
        model(randn(16, 63, seed=1))
    _assert_equal(_step(model, x), before)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_high_precision_is_the_model_itself() -> None:
    model, x = _mlp(), randn(16, 64, seed=1)
    before = _step(model, x)
    with executing(model, plan_of(model, "high_precision")):
        _assert_equal(_step(model, x), before)


def test_equal_seeds_round_stochastically_alike() -> None:
    model, x = _mlp(), randn(16, 64, seed=1)
    steps = []
    for seed in (0, 0, 1):
        with executing(model, plan_of(model, "nvfp4"), seed=seed):
            steps.append(_step(model, x))
    _assert_equal(steps[0], steps[1])
    assert not torch.equal(steps[0][1], steps[2][1])


def test_without_gradients_nothing_is_made_column_wise() -> None:
    class Columns(Observer):
        def operand(self, slot, copy, tensor, quantized) -> None:  # type: ignore[no-untyped-def]
            assert quantized.columnwise is None

    model, x = _mlp(), randn(16, 64, seed=1)
    with torch.no_grad(), executing(model, plan_of(model, "mxfp8"), observer=Columns()):
        first = model(x)
    with torch.inference_mode(), executing(model, plan_of(model, "mxfp8")):
        assert torch.equal(first, model(x))


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_gradient_checkpointing(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = _mlp()
            self.on = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.on:
                return self.inner(x)
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    model, x = Checkpointed(), randn(16, 64, seed=1).requires_grad_()
    plan = plan_of(model, "mxfp8")
    steps, told = [], []
    for model.on in (False, True):
        told.append(_Told())
        with executing(model, plan, observer=told[-1]) as run:
            steps.append(_step(model, x))
        assert all(rows == 16 for rows in run.rows.values())
    _assert_equal(steps[0], steps[1])
    assert told[0].representations == told[1].representations
    assert told[0].products == told[1].products
    assert set(told[0].products.values()) == {1}


def test_the_backward_pass_belongs_inside() -> None:
    model = _mlp()
    with executing(model, plan_of(model, "mxfp8")):
        loss = model(randn(16, 64, seed=1)).sum()
    with pytest.raises(UsageError, match="ran after the plan's context was left"):
        loss.backward()


def test_compiled_models_run_eagerly() -> None:
    model, x = _mlp(), randn(16, 64, seed=1)
    plan = plan_of(model, "mxfp8")
    with executing(model, plan):
        expected = _step(model, x)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    with executing(compiled, plan) as run:
        _assert_equal(_step(compiled, x), expected)
    assert run.never_ran() == []


def test_autocast_multiplies_in_its_dtype() -> None:
    model, x = _mlp()[0], randn(16, 64, seed=1)
    with torch.autocast("cpu", torch.bfloat16), executing(model, plan_of(model, "mxfp8")):
        y = model(x)
        y.float().sum().backward()
    assert y.dtype is torch.bfloat16
    assert model.weight.grad.dtype is torch.float32
    weight = model.weight.detach().bfloat16()
    expected = products("mxfp8", x.bfloat16(), weight, torch.zeros(16, 96).bfloat16())
    torch.testing.assert_close(y, expected.y + model.bias.bfloat16(), rtol=0.01, atol=0.02)


def test_shared_modules_are_one_layer() -> None:
    shared = nn.Linear(64, 64, bias=False)
    model, x = nn.Sequential(shared, nn.ReLU(), shared), randn(16, 64, seed=1)
    told = _Told()
    with executing(model, plan_of(model, "mxfp8"), observer=told) as run:
        model(x).sum().backward()
    assert [(layer.name, rows) for (layer, _), rows in run.rows.items()] == [("0", 32)]
    assert told.operands == {"0:forward[0]": 2, "0:forward[1]": 2, "0:backward[0]": 2}


def test_tied_weights_take_the_quantizer_of_the_module_that_runs() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(48, 64)
            self.first = nn.Linear(64, 48, bias=False)
            self.second = nn.Linear(64, 48, bias=False)
            self.first.weight = self.embed.weight
            self.second.weight = self.embed.weight

        def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x = self.embed(tokens)
            return self.first(x), self.second(x)

    def second_only(role):  # type: ignore[no-untyped-def]
        if role.name != "second":
            return IdentityQuantizer()
        from qrole.dtypes import DType

        return MXFP8Quantizer(DType.kFloat8E4M3)

    model, tokens = Tied(), torch.arange(32)
    plan = build_plan(walk(model), Factory.of(second_only))
    with torch.no_grad(), executing(model, plan) as run:
        first, second = model(tokens)
    x, w = model.embed.weight.detach()[tokens], model.embed.weight.detach()
    assert run.never_ran() == []
    assert torch.equal(first, x @ w.t())
    assert torch.equal(second, products("mxfp8", x, w, torch.zeros(32, 48)).y)


def test_weights_are_quantized_once_and_again_when_they_change() -> None:
    model, x = _mlp(), randn(16, 64, seed=1)
    plan, told, cache = plan_of(model, "mxfp8"), _Told(), WeightCache()
    state = PlanState(plan)
    weights = ("0:forward[1]", "2:forward[1]")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with executing(model, plan, observer=told, weights=cache, state=state):
            _step(model, x)
    assert [told.operands[slot] for slot in weights] == [1, 1]
    with executing(model, plan, observer=told, weights=cache, state=state):
        model(x).sum().backward()
        optimizer.step()
        after = model(x)
    assert [told.operands[slot] for slot in weights] == [2, 2]
    with executing(copy.deepcopy(model), plan_of(model, "mxfp8")), torch.no_grad():
        pass
    with torch.no_grad(), executing(model, plan):
        assert torch.equal(after, model(x))


def test_a_state_serves_its_own_plan_only() -> None:
    model = _mlp()
    state = PlanState(plan_of(model, "mxfp8"))
    with (
        pytest.raises(UsageError, match="a state of mxfp8 for a plan of nvfp4"),
        executing(model, plan_of(model, "nvfp4"), state=state),
    ):
        pass


def test_delayed_scaling_goes_from_step_to_step() -> None:
    """Scale 1 in the first step, then that of the amaxes seen, forward and backward."""
    model, x = nn.Linear(64, 32, bias=False), randn(16, 64, seed=1)
    dy = 1e-3 * randn(16, 32, seed=2)
    plan = plan_of(model, "delayed_scaling")
    state = PlanState(plan)
    for _ in range(2):
        with executing(model, plan, state=state):
            model(x).backward(dy)
    forward, backward = state.buffers
    torch.testing.assert_close(forward.scale[0], 448.0 / x.abs().max())
    torch.testing.assert_close(forward.scale[1], 448.0 / model.weight.detach().abs().max())
    torch.testing.assert_close(backward.scale[0], 57344.0 / dy.abs().max())


def test_delayed_scaling_steps_with_the_model_inside_one_block() -> None:
    model, x = nn.Linear(64, 32, bias=False), randn(16, 64, seed=1)
    plan = plan_of(model, "delayed_scaling")
    states = [PlanState(plan), PlanState(plan)]
    with executing(model, plan, state=states[0]):
        for scale in (1.0, 0.5):
            model(scale * x).sum().backward()
    for scale in (1.0, 0.5):
        with executing(model, plan, state=states[1]):
            model(scale * x).sum().backward()
    for one, other in zip(*(state.buffers for state in states), strict=True):
        assert torch.equal(one.amax_history, other.amax_history)
        assert torch.equal(one.scale, other.scale)
