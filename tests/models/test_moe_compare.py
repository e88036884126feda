"""Comparing MoE models, against a fake quantization that shares no code with qrole.

The oracle rounds every product's operands to MXFP8 in plain torch, forward and backward, in blocks
along the dimension that the product sums over. Experts are transformers' own loop over them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.utils import logging as transformers_logging

from qrole.api import compare
from qrole.comparing import Report
from qrole.emitters import walk
from qrole.execute import executing
from qrole.plans import build_plan
from qrole.plugins import load_factory
from tests.models.moe import texts

EXPERTS = 8
plain_linear = F.linear


def _mxfp8(x: Tensor) -> Tensor:
    """Rounded in blocks of 32 along the last dimension."""
    missing = -x.shape[-1] % 32
    blocks = F.pad(x, (0, missing)).unflatten(-1, (-1, 32))
    amax = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    scale = torch.exp2(torch.ceil(torch.log2(amax / 448.0)))
    rounded = (blocks / scale).to(torch.float8_e4m3fn).float() * scale
    return rounded.flatten(-2)[..., : x.shape[-1]]


def _along_rows(x: Tensor) -> Tensor:
    return _mxfp8(x.t()).t()


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return _mxfp8(x) @ _mxfp8(w).t()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return _mxfp8(dy) @ _along_rows(w), _along_rows(dy).t() @ _along_rows(x)


def _rounded_linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """Every linear layer but the router, whose weight has a row per expert."""
    if w.shape[0] == EXPERTS:
        return plain_linear(x, w, bias)
    y: Tensor = _Rounded.apply(x.reshape(-1, x.shape[-1]), w)
    return y.view(*x.shape[:-1], -1)


@dataclass(frozen=True)
class _Step:
    logits: Tensor
    grads: dict[str, Tensor]
    tokens: dict[str, Counter[int]]


def _step(model: nn.Module, ids: Tensor) -> _Step:
    """Logits, gradients, and how many tokens each router sent to each expert."""
    tokens: dict[str, Counter[int]] = defaultdict(Counter)

    def counting(name: str) -> Callable[..., None]:
        return lambda module, args, found: tokens[name].update(found[2].flatten().tolist())

    model.zero_grad()
    routers = {n: m for n, m in model.named_modules() if type(m).__name__.endswith("TopKRouter")}
    handles = [m.register_forward_hook(counting(n)) for n, m in routers.items()]
    try:
        logits = model(input_ids=ids).logits
        _loss(logits).backward()
    finally:
        for handle in handles:
            handle.remove()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return _Step(logits.detach(), grads, dict(tokens))


def _loss(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(-1)[..., 0].mean()


@contextmanager
def _by_the_oracle(monkeypatch: pytest.MonkeyPatch, model: Any) -> Iterator[None]:
    chosen = model.config._experts_implementation
    with monkeypatch.context() as patched:
        patched.setattr(F, "linear", _rounded_linear)
        model.set_experts_implementation("eager")
        yield
    model.set_experts_implementation(chosen)


def _compared(model: nn.Module, ids: Tensor) -> Report:
    batches = [{"input_ids": ids}]
    return compare(model, "mxfp8", data=batches, loss=lambda out, batch: _loss(out.logits))


def _rel_err(found: list[Tensor], expected: list[Tensor]) -> float:
    errors = sum(float((a - b).square().sum()) for a, b in zip(found, expected, strict=True))
    return (errors / sum(float(b.square().sum()) for b in expected)) ** 0.5


def _check_against_the_oracle(report: Report, plain: _Step, rounded: _Step) -> None:
    (found,) = report.candidates
    assert found.not_computed == {}
    expected = _rel_err([rounded.logits], [plain.logits])
    assert found.model.rel_err == pytest.approx(expected, rel=0.05)
    assert found.model.loss_diff == pytest.approx(
        float(_loss(rounded.logits) - _loss(plain.logits)), abs=0.1 * abs(found.model.loss) + 1e-4
    )
    errors = {p.name: p.grad_rel_err for p in found.parameters}
    assert errors.keys() == plain.grads.keys()
    whole = _rel_err(list(rounded.grads.values()), list(plain.grads.values()))
    assert found.model.grad_rel_err == pytest.approx(whole, rel=0.05)
    for name in (n for n in errors if n.endswith("_proj") and ".experts." in n):
        assert errors[name] == pytest.approx(
            _rel_err([rounded.grads[name]], [plain.grads[name]]), rel=0.15
        )


def _check_idle(report: Report, rounded: _Step) -> dict[str, list[int]]:
    """Experts without a token are those that the oracle's routers chose for none."""
    expected = {}
    for router, tokens in rounded.tokens.items():
        idle = [e for e in range(EXPERTS) if not tokens[e]]
        block = router.rpartition(".")[0]
        for projection in ("gate_up_proj", "down_proj") if idle else ():
            expected[f"{block}.experts.{projection}"] = idle
    assert report.candidates[0].idle_experts == expected
    return expected


def _qwen(experts: str) -> Qwen3MoeForCausalLM:
    config = Qwen3MoeConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=EXPERTS,
        num_experts_per_tok=2,
        max_position_embeddings=128,
    )
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM._from_config(config, experts_implementation=experts)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() >= 2:
                p.normal_(0, 0.1)
    return model.eval()


@pytest.mark.parametrize("experts", ["eager", "batched_mm", "grouped_mm"])
@pytest.mark.parametrize("tokens", [128, 3], ids=["all experts", "some experts"])
def test_qwen3_moe(experts: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _qwen(experts)
    ids = torch.randint(96, (1, tokens), generator=torch.Generator().manual_seed(1))
    plain = _step(model, ids)
    with _by_the_oracle(monkeypatch, model):
        rounded = _step(model, ids)
    report = _compared(model, ids)
    _check_against_the_oracle(report, plain, rounded)
    idle = _check_idle(report, rounded)
    assert len(idle) == (4 if tokens == 3 else 0)
    layers = {f"{g.module}.{g.group}" for g in report.candidates[0].gemms if g.group}
    assert layers == {
        f"model.layers.{i}.mlp.experts.{projection}"
        for i in range(2)
        for projection in ("gate_up_proj", "down_proj")
    }


@pytest.mark.parametrize("experts", ["eager", "batched_mm", "grouped_mm"])
def test_rows_of_experts(experts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each expert multiplies the rows that the router sent to it."""
    model = _qwen(experts)
    ids = torch.randint(96, (2, 20), generator=torch.Generator().manual_seed(2))
    with _by_the_oracle(monkeypatch, model):
        expected = _step(model, ids).tokens
    plan = build_plan(walk(model), load_factory("mxfp8"))
    with torch.no_grad(), executing(model, plan) as run:
        model(input_ids=ids)
    rows: dict[str, Counter[int]] = defaultdict(Counter)
    for (layer, expert), count in run.rows.items():
        if layer.group == "down_proj":
            rows[layer.module.replace("experts", "gate")][expert] = count
    assert rows == expected


@pytest.mark.slow
@pytest.mark.parametrize("experts", ["batched_mm", "grouped_mm"])
def test_trained_mixtral(moe: Path, experts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers_logging.disable_progress_bar()
    model = MixtralForCausalLM.from_pretrained(moe, experts_implementation=experts).eval()
    ids = texts()[1][None, :128]
    plain = _step(model, ids)
    with _by_the_oracle(monkeypatch, model):
        rounded = _step(model, ids)
    report = _compared(model, ids)
    _check_against_the_oracle(report, plain, rounded)
    _check_idle(report, rounded)
    (found,) = report.candidates
    logits = [x.flatten(0, -2).log_softmax(-1) for x in (plain.logits, rounded.logits)]
    kl = F.kl_div(logits[1], logits[0], reduction="batchmean", log_target=True)
    assert found.model.kl == pytest.approx(float(kl), rel=0.05)
    assert found.model.top1_agreement is not None
    assert found.model.top1_agreement > 0.9
