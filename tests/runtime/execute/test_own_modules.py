"""Modules and fusible ops that build their quantizers themselves, run by a plan."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from qrole.dtypes import DType
from qrole.emitters import EmitOptions, walk
from qrole.errors import OperandError, UsageError
from qrole.execute import Observer, PlanState, executing, layers_of
from qrole.modules import DotProductAttention, Linear, ops
from qrole.plans import build_plan
from qrole.plugins import Factory, load_factory
from qrole.quantizers import IdentityQuantizer, MXFP8Quantizer
from qrole.roles import QuantizerRole, Slot
from tests.runtime.execute.conftest import plan_of, products, randn

THREE = ("fprop", "dgrad", "wgrad")


class _Told(Observer):
    wants_operands = True

    def __init__(self) -> None:
        self.operands: Counter[tuple[str, str]] = Counter()
        self.products: Counter[tuple[str, str]] = Counter()

    def operand(self, slot: Slot, copy: int, tensor, quantized) -> None:  # type: ignore[no-untyped-def]
        self.operands[(slot.module, slot.operand)] += 1

    def product(self, layer, gemm, copy, left, right, result, bias) -> None:  # type: ignore[no-untyped-def]
        self.products[(layer.module, gemm.value)] += 1
        exact = left @ right if bias is None else left @ right + bias
        assert (exact - result).norm() < 0.1 * exact.norm()


def _linear(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "module":
        return Linear(64, 32, bias=False, params_dtype=torch.float32)
    return ops.BasicLinear(64, 32, dtype=torch.float32)


@pytest.mark.parametrize("kind", ["module", "op"])
def test_the_three_products_are_those_defined_and_told_of(kind: str) -> None:
    model = nn.Sequential(_linear(kind))
    x, dy, told = randn(48, 64, seed=1).requires_grad_(), randn(48, 32, seed=2), _Told()
    with executing(model, plan_of(model, "mxfp8"), observer=told) as run:
        y = model(x)
        y.backward(dy)
    weight = model[0].get_parameter("weight")
    expected = products("mxfp8", x.detach(), weight.detach(), dy)
    torch.testing.assert_close(y, expected.y, rtol=0, atol=1e-5)
    torch.testing.assert_close(x.grad, expected.dx, rtol=0, atol=1e-5)
    torch.testing.assert_close(weight.grad, expected.dw, rtol=0, atol=1e-5)
    assert told.products == dict.fromkeys([("0", gemm) for gemm in THREE], 1)
    assert told.operands == dict.fromkeys([("0", o) for o in ("input", "weight", "grad_output")], 1)
    assert list(run.rows.values()) == [48]


def _pipeline() -> nn.Module:
    torch.manual_seed(0)
    return ops.Sequential(
        ops.LayerNorm(64),
        ops.Linear(64, 128),
        ops.SwiGLU(),
        ops.Linear(64, 32, bias=False),
        ops.ConstantScale(2.0),
    )


def _plain(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    y = model(x)
    grads = torch.autograd.grad(y.square().sum(), [x, *model.parameters()])
    return [y.detach(), *grads]


def test_a_pipeline_of_ops() -> None:
    """Against its formula, with every product by its definition."""
    model, x, told = _pipeline(), randn(32, 64, seed=1), _Told()
    with torch.no_grad(), executing(model, plan_of(model, "mxfp8"), observer=told) as run:
        y = model(x)
    first, second = model[1], model[3]
    none = torch.zeros(32, 128)
    hidden = products("mxfp8", F.layer_norm(x, (64,)), first.weight.detach(), none).y + first.bias
    a, b = hidden.chunk(2, -1)
    last = products("mxfp8", F.silu(a) * b, second.weight.detach(), torch.zeros(32, 32)).y
    torch.testing.assert_close(y, 2 * last, rtol=0, atol=1e-4)
    assert run.never_ran() == []
    assert {name for name, _ in told.operands} == {"1.basic_ops.0", "3.basic_ops.0"}


def test_the_ops_are_as_before() -> None:
    model, x = _pipeline(), randn(32, 64, seed=1).requires_grad_()
    before = _plain(model, x)
    kept = {name: dict(m.__dict__) for name, m in model.named_modules()}
    plan = plan_of(model, "mxfp8")
    with executing(model, plan):
        during = _plain(model, x)
    assert not torch.equal(before[0], during[0])
    assert all(torch.equal(a, b) for a, b in zip(before, _plain(model, x), strict=True))
    assert all(m.__dict__.keys() == kept[name].keys() for name, m in model.named_modules())
    assert model[1].basic_ops[0].get_quantizer("forward", 0) is None


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_checkpointed_ops(reentrant: bool) -> None:
    model, x, steps = _pipeline(), randn(32, 64, seed=1).requires_grad_(), []
    plan = plan_of(model, "mxfp8")
    for checkpointed in (False, True):
        told = _Told()
        with executing(model, plan, observer=told) as run:
            y = checkpoint(model, x, use_reentrant=reentrant) if checkpointed else model(x)
            y.square().sum().backward()
        assert set(run.rows.values()) == {32}
        assert set(told.products.values()) == {1}
        assert len(told.products) == 6
        steps.append([p.grad for p in (x, *model.parameters()) if p.grad is not None])
        model.zero_grad()
        x.grad = None
    assert all(torch.equal(a, b) for a, b in zip(*steps, strict=True))


def test_an_op_that_runs_twice_is_one_layer() -> None:
    shared = ops.BasicLinear(64, 64, dtype=torch.float32)
    model, told = nn.Sequential(shared, nn.ReLU(), shared), _Told()
    with executing(model, plan_of(model, "mxfp8"), observer=told) as run:
        model(randn(32, 64, seed=1).requires_grad_()).sum().backward()
    assert [(layer.name, rows) for (layer, _), rows in run.rows.items()] == [("0", 64)]
    assert told.operands[("0", "weight")] == 1
    assert told.products[("0", "wgrad")] == 2


def test_groups_of_an_op() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = ops.GroupedLinear(3, 64, 32, bias=False, dtype=torch.float32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.experts(x, torch.tensor([16, 0, 32]))

    torch.manual_seed(0)
    model, x = Model(), randn(48, 64, seed=1)
    plan = plan_of(model, "mxfp8")
    with torch.no_grad(), executing(model, plan) as run:
        y = model(x)
    (layer,) = layers_of(plan)
    assert [run.rows[(layer, e)] for e in range(3)] == [16, 0, 32]
    for e, rows in ((0, slice(0, 16)), (2, slice(16, 48))):
        weight = model.experts.get_parameter(f"weight{e}").detach()
        none = torch.zeros(x[rows].shape[0], 32)
        torch.testing.assert_close(y[rows], products("mxfp8", x[rows], weight, none).y)


@pytest.mark.filterwarnings("ignore:.*bare:UserWarning")
def test_an_input_that_another_op_quantized() -> None:
    torch.manual_seed(0)
    model, told = ops.Sequential(ops.Quantize(), ops.Linear(64, 32)), _Told()

    def factory(role: QuantizerRole) -> Any:
        return MXFP8Quantizer(DType.kFloat8E4M3)

    x = randn(32, 64, seed=1)
    with executing(model, build_plan(walk(model), Factory.of(factory)), observer=told) as run:
        y = model(x)
        y.sum().backward()
    assert run.never_ran() == []
    weight, bias = model[1].weight.detach(), model[1].bias
    expected = products("mxfp8", x, weight, torch.zeros(32, 32)).y + bias
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-5)
    assert told.operands[("0", "")] == 1
    assert told.operands[("1.basic_ops.0", "input")] == 0
    assert set(told.products) == {("1.basic_ops.0", "fprop"), ("1.basic_ops.0", "wgrad")}


def _two() -> nn.Module:
    torch.manual_seed(0)
    return ops.Sequential(*(ops.BasicLinear(64, 64, dtype=torch.float32) for _ in range(2)))


def test_neighbours_without_anything_between() -> None:
    """High precision hands over nothing, delayed scaling does, and others cannot."""
    model, x = _two(), randn(32, 64, seed=1).requires_grad_()
    before = _plain(model, x)
    with executing(model, plan_of(model, "high_precision")) as run:
        found = _plain(model, x)
    assert run.never_ran() == []
    assert all(torch.equal(a, b) for a, b in zip(before, found, strict=True))
    plan, told = plan_of(model, "delayed_scaling"), _Told()
    state = PlanState(plan)
    for _ in range(2):
        with executing(model, plan, observer=told, state=state):
            _plain(model, x)
    assert told.products == dict.fromkeys([(m, g) for m in "01" for g in THREE], 2)
    with (
        pytest.raises(OperandError, match="unsupported quantizer MXFP8Quantizer"),
        executing(model, plan_of(model, "mxfp8")),
    ):
        model(x)


@pytest.mark.parametrize("kind", ["module", "op"])
@pytest.mark.parametrize("operand", ["input", "weight", "grad_output"])
def test_one_operand_alone(kind: str, operand: str) -> None:
    def factory(role: QuantizerRole | None) -> Any:
        alone = role is not None and role.tensor_type == operand
        return MXFP8Quantizer(DType.kFloat8E4M3) if alone else IdentityQuantizer()

    model = nn.Sequential(_linear(kind))
    x, dy = randn(48, 64, seed=1).requires_grad_(), randn(48, 32, seed=2)
    with executing(model, build_plan(walk(model), Factory.of(factory))):
        y = model(x)
        y.backward(dy)
    weight = model[0].get_parameter("weight")

    def hat(t: torch.Tensor, name: str, direction: str) -> torch.Tensor:
        made = MXFP8Quantizer(DType.kFloat8E4M3)(t.detach())
        return made.dequantize(direction=direction) if name == operand else t.detach()

    row, col = "rowwise", "columnwise"
    expected = (
        hat(x, "input", row) @ hat(weight, "weight", row).t(),
        hat(dy, "grad_output", row) @ hat(weight, "weight", col),
        hat(dy, "grad_output", col).t() @ hat(x, "input", col),
    )
    for given, wanted in zip((y, x.grad, weight.grad), expected, strict=True):
        torch.testing.assert_close(given, wanted, rtol=0, atol=1e-4)


def test_attention_of_ones_own_where_it_was_asked_for() -> None:
    model = DotProductAttention(4, 32, qkv_format="bshd", attn_mask_type="no_mask")
    inputs = [randn(2, 32, 4, 32, seed=i) for i in range(3)]
    q, k, v = (x.transpose(1, 2) for x in inputs)
    expected = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    factory = load_factory("current_scaling")
    for asked in (False, True):
        told, plan = _Told(), build_plan(walk(model, EmitOptions(attention=asked)), factory)
        with torch.no_grad(), executing(model, plan, observer=told) as run:
            y = model(*inputs)
        assert run.never_ran() == []
        assert {operand for _, operand in told.operands} == ({"qkv", "s", "o"} if asked else set())
        assert list(run.rows.values()) == ([64] if asked else [])
        assert torch.equal(y, expected) == (not asked)
    plain = build_plan(walk(model, EmitOptions(attention=True)), load_factory("high_precision"))
    with torch.no_grad(), executing(model, plain) as run:
        assert torch.equal(model(*inputs), expected)
    assert list(run.rows.values()) == [64]


def test_modules_of_others_are_refused_by_name() -> None:
    class Other(nn.Module):
        def get_quantizer_roles(self, *, fwd: bool, num_quantizers: int) -> list[QuantizerRole]:
            return [QuantizerRole("linear", "input", "x")] * num_quantizers

    model = nn.Sequential(Other())
    with (
        pytest.raises(UsageError, match="0 is a Other, which builds its quantizers in a way"),
        executing(model, plan_of(model, "mxfp8")),
    ):
        pass
