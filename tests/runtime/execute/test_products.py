"""Every way in which a module may multiply by a covered weight gives the three defined products."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qrole.execute import Observer, executing, layers_of
from qrole.roles import Slot
from tests.runtime.execute.conftest import plan_of, products, randn

M, K, N = 48, 64, 32


class _Weight(nn.Linear):
    """A covered weight, multiplied with as a subclass likes."""

    def __init__(self) -> None:
        super().__init__(K, N, bias=False)
        with torch.no_grad():
            self.weight.copy_(randn(N, K, seed=1))


class _Linear(_Weight):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight)


class _Matmul(_Weight):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t()


class _Method(_Weight):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.matmul(self.weight.mT)


class _WeightOnTheLeft(_Weight):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight @ x.t()).t()


class _Mm(_Weight):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, self.weight.transpose(0, 1))


class _Addmm(_Weight):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(torch.zeros(N), x, self.weight.t())


class _ScaledAddmm(_Weight):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(torch.zeros(1, N), x, self.weight.t(), beta=2.0, alpha=1)


class _Einsum(_Weight):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("mk,nk->mn", x, self.weight)


class _EinsumTransposed(_Weight):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("n k, m k -> n m", self.weight, x).t()


class _EinsumHeads(_Weight):
    """The weight seen as (heads, width, K), as absorbed attention projections are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.weight.view(4, N // 4, K)
        return torch.einsum("mk,hek->mhe", x, heads).flatten(1)


class _CastAndBack(_Weight):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.double().float())


@pytest.mark.parametrize(
    "cls",
    [
        _Linear,
        _Matmul,
        _Method,
        _WeightOnTheLeft,
        _Mm,
        _Addmm,
        _ScaledAddmm,
        _Einsum,
        _EinsumTransposed,
        _EinsumHeads,
    ],
)
def test_products_of_a_weight(cls: type[_Weight], factory: str) -> None:
    module, x = cls(), randn(M, K, seed=2).requires_grad_()
    dy = randn(M, N, seed=3)
    plan = plan_of(module, factory)
    with executing(module, plan) as run:
        y = module(x)
        y.backward(dy)
    assert run.never_ran() == []
    slot = plan.decisions[2].slot
    assert slot.operand == "grad_output"
    assert x.grad is not None
    assert module.weight.grad is not None
    bits = _bits_of(slot) if factory == "nvfp4_1d_weight" else None
    expected = products(factory, x.detach(), module.weight.detach(), dy, bits)
    torch.testing.assert_close(y, expected.y, rtol=0, atol=1e-5)
    torch.testing.assert_close(x.grad, expected.dx, rtol=0, atol=1e-5)
    torch.testing.assert_close(module.weight.grad, expected.dw, rtol=0, atol=1e-5)


def _bits_of(slot: Slot):  # type: ignore[no-untyped-def]
    from qrole.execute import PlanState
    from qrole.plans import Inventory, Plan
    from qrole.plugins import Factory

    empty = Plan(Inventory("", ()), Factory(lambda role: role, "", ""), ())
    return lambda: PlanState(empty, seed=0).generator(slot, 0, torch.device("cpu"))


def test_a_cast_weight_is_still_the_weight() -> None:
    module, x = _CastAndBack(), randn(M, K, seed=2)
    with executing(module, plan_of(module, "mxfp8")) as run:
        y = module(x)
    assert run.never_ran() == []
    assert torch.equal(y, products("mxfp8", x, module.weight.detach(), randn(M, N, seed=3)).y)


def test_leading_dimensions_and_bias() -> None:
    module = nn.Linear(K, N)
    x = randn(3, 16, K, seed=4).requires_grad_()
    dy = randn(3, 16, N, seed=5)
    with executing(module, plan_of(module, "mxfp8")):
        y = module(x)
        y.backward(dy)
    flat = x.detach().reshape(-1, K)
    expected = products("mxfp8", flat, module.weight.detach(), dy.reshape(-1, N))
    assert module.bias.grad is not None
    torch.testing.assert_close(y.reshape(-1, N), expected.y + module.bias)
    torch.testing.assert_close(module.bias.grad, dy.sum((0, 1)))
    assert x.grad is not None
    assert torch.equal(x.grad.reshape(-1, K), expected.dx)


def test_conv1d_of_gpt2() -> None:
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    module = Conv1D(N, K)
    x = randn(M, K, seed=2)
    with executing(module, plan_of(module, "mxfp8")) as run:
        y = module(x)
    assert run.never_ran() == []
    dy = randn(M, N, seed=3)
    expected = products("mxfp8", x, module.weight.detach().t(), dy)
    torch.testing.assert_close(y, expected.y + module.bias, rtol=0, atol=1e-5)


class _Called(Observer):
    def __init__(self) -> None:
        self.outputs: list[tuple[str, int, tuple[int, ...]]] = []

    def output(self, layer, copy, output_MN) -> None:  # type: ignore[no-untyped-def]
        self.outputs.append((layer.name, copy, tuple(output_MN.shape)))


@pytest.mark.parametrize("training", [True, False], ids=["train", "fast path"])
@pytest.mark.parametrize("cross", [True, False], ids=["cross", "self"])
def test_multihead_attention(training: bool, cross: bool) -> None:
    module = nn.MultiheadAttention(32, 4, batch_first=True).train(training)
    x = randn(2, 8, 32, seed=6)
    memory = randn(2, 8, 32, seed=7) if cross else x
    called = _Called()
    with torch.no_grad(), executing(module, plan_of(module, "mxfp8"), observer=called) as run:
        y, _ = module(x, memory, memory)
    assert run.never_ran() == []
    names = [name for name, _, _ in called.outputs]
    assert names == (["in_proj", "in_proj", "out_proj"] if cross else ["in_proj", "out_proj"])
    assert not torch.equal(y, module(x, memory, memory)[0])


def test_encoder_layer_does_not_escape_through_its_fast_path() -> None:
    module = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    with torch.no_grad(), executing(module, plan_of(module, "mxfp8")) as run:
        module(randn(2, 8, 32, seed=6))
    assert run.never_ran() == []


class _Experts(nn.Module):
    """Fused experts, (E, out, in), multiplied with as a subclass likes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden_dim = K
        self.up_proj = nn.Parameter(randn(4, N, K, seed=8))
        self.down_proj = nn.Parameter(randn(4, K, N, seed=9))

    def forward(self, x_EMK: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class _Loop(_Experts):
    def forward(self, x_EMK: torch.Tensor) -> torch.Tensor:
        hidden = [F.linear(x, w) for x, w in zip(x_EMK, self.up_proj, strict=True)]
        return torch.stack([F.linear(h, self.down_proj[e]) for e, h in enumerate(hidden)])


class _Bmm(_Experts):
    def forward(self, x_EMK: torch.Tensor) -> torch.Tensor:
        return torch.bmm(torch.bmm(x_EMK, self.up_proj.mT), self.down_proj.transpose(1, 2))


class _EinsumExperts(_Experts):
    def forward(self, x_EMK: torch.Tensor) -> torch.Tensor:
        hidden = torch.einsum("emk,enk->emn", x_EMK, self.up_proj)
        return torch.einsum("emn,ekn->emk", hidden, self.down_proj)


class _GroupedMm(_Experts):
    def forward(self, x_EMK: torch.Tensor) -> torch.Tensor:
        offs = torch.arange(1, 5, dtype=torch.int32) * x_EMK.shape[1]
        rows = x_EMK.flatten(0, 1)
        hidden = F.grouped_mm(rows, self.up_proj.mT, offs=offs)
        return F.grouped_mm(hidden, self.down_proj.mT, offs=offs).view_as(x_EMK)


@pytest.mark.parametrize("cls", [_Loop, _Bmm, _EinsumExperts, _GroupedMm])
def test_fused_experts(cls: type[_Experts]) -> None:
    module, x = cls(), randn(4, 16, K, seed=10).requires_grad_()
    dy = randn(4, 16, K, seed=11)
    plan = plan_of(module, "mxfp8")
    with executing(module, plan) as run:
        y = module(x)
        y.backward(dy)
    assert {(layer.group, copy): rows for (layer, copy), rows in run.rows.items()} == {
        (group, e): 16 for group in ("up_proj", "down_proj") for e in range(4)
    }
    for e in range(4):
        up, down = module.up_proj[e].detach(), module.down_proj[e].detach()
        first = products("mxfp8", x[e].detach(), up, torch.zeros(16, N))
        second = products("mxfp8", first.y, down, dy[e])
        first = products("mxfp8", x[e].detach(), up, second.dx)
        torch.testing.assert_close(y[e], second.y, rtol=0, atol=1e-4)
        assert x.grad is not None
        torch.testing.assert_close(x.grad[e], first.dx, rtol=0, atol=1e-4)
        assert module.up_proj.grad is not None
        torch.testing.assert_close(module.up_proj.grad[e], first.dw, rtol=0, atol=1e-4)


def test_experts_of_transformers_without_tokens() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=8,
        num_experts_per_tok=2,
    )
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(config).eval()
    plan = plan_of(model, "mxfp8")
    with torch.no_grad(), executing(model, plan) as run:
        model(input_ids=torch.arange(3)[None])
    grouped = [layer for layer in layers_of(plan) if layer.copies == 8]
    assert [layer.group for layer in grouped] == ["gate_up_proj", "down_proj"]
    assert run.never_ran() == []
    assert sum(run.rows[(grouped[0], e)] for e in range(8)) == 6
    assert any(run.rows[(grouped[0], e)] == 0 for e in range(8))


def test_a_weight_read_in_an_unknown_way_is_reported() -> None:
    class Scaled(_Experts):
        def forward(self, x_EMK: torch.Tensor) -> torch.Tensor:
            return torch.matmul(x_EMK, self.up_proj.mT.mul(2.0))

    module = Scaled()
    with executing(module, plan_of(module, "mxfp8")) as run:
        module(randn(4, 16, K, seed=10))
    assert [layer.group for layer in run.never_ran()] == ["up_proj", "down_proj"]
    assert {layer.group: names for layer, names in run.readers.items()} == {"up_proj": {"mul"}}


def test_weight_only_plans_multiply_the_dequantized_weight() -> None:
    from qrole.emitters import walk
    from qrole.plans import build_plan
    from qrole.plugins import Factory
    from qrole.quantizers import IdentityQuantizer, NVFP4Quantizer

    def weight_only(role):  # type: ignore[no-untyped-def]
        return NVFP4Quantizer() if role.tensor_type == "weight" else IdentityQuantizer()

    module, x = _Linear(), randn(M, K, seed=2)
    with torch.no_grad(), executing(module, build_plan(walk(module), Factory.of(weight_only))):
        y = module(x)
    weight = NVFP4Quantizer()(module.weight.detach()).dequantize()
    torch.testing.assert_close(y, x @ weight.t(), rtol=0, atol=1e-5)
