"""Attention of a foreign module, and plans and inputs for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from qrole.dtypes import DType
from qrole.emitters import EmitOptions, walk
from qrole.emitters.base import Emitter, attention_slots, class_name
from qrole.execute import Observer, executing
from qrole.plans import Plan, build_plan
from qrole.plugins import Factory
from qrole.quantizers import (
    Float8CurrentScalingQuantizer,
    MXFP8Quantizer,
)
from qrole.quantizers.base import Quantizer
from qrole.roles import QuantizerRole, Slot
from tests.runtime.execute.conftest import randn

B, H, S, D = 2, 4, 32, 32
SCALE = D**-0.5
BACKWARD = ("do", "dp")
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Attention(nn.Module):
    """Attention that is computed as a function likes."""

    def __init__(self, compute: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.compute(q, k, v)


class _Emitter(Emitter):
    name = "test"

    def slots(self, path: str, module: nn.Module, options: EmitOptions) -> list[Slot] | None:
        if isinstance(module, Attention) and options.attention:
            return attention_slots(path, class_name(module), name="att")
        return None


def is_backward(role: QuantizerRole) -> bool:
    return role.tensor_type in BACKWARD or role.name.endswith("grad_input")


def current(role: QuantizerRole) -> Quantizer:
    element = DType.kFloat8E5M2 if is_backward(role) else DType.kFloat8E4M3
    return Float8CurrentScalingQuantizer(element, device="cpu")


def mxfp8(role: QuantizerRole) -> Quantizer:
    return MXFP8Quantizer(DType.kFloat8E4M3)


def attention_plan(module: nn.Module, factory: Callable[[QuantizerRole], Any]) -> Plan:
    inventory = walk(module, EmitOptions(attention=True), emitters=[_Emitter()])
    return build_plan(inventory, Factory.of(factory))


def qkv(groups: int = H, *, queries: int = S, dtype: torch.dtype = torch.float32) -> Inputs:
    shapes = ((B, H, queries, D), (B, groups, S, D), (B, groups, S, D))
    q, k, v = (randn(*shape, seed=i).to(dtype).requires_grad_() for i, shape in enumerate(shapes))
    return q, k, v


def step(
    compute: Callable[..., torch.Tensor],
    factory: Callable[[QuantizerRole], Any],
    inputs: Inputs,
    observer: Observer | None = None,
) -> list[torch.Tensor]:
    """The result and the three gradients."""
    module = Attention(compute)
    with executing(module, attention_plan(module, factory), observer=observer) as run:
        y = module(*inputs)
        grads = torch.autograd.grad(y, inputs, randn(*y.shape, seed=5).to(y.dtype))
    assert run.never_ran() == []
    assert run.readers == {}
    return [y.detach(), *grads]


def sdpa(**options: Any) -> Callable[..., torch.Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


def causal(queries: int = S) -> torch.Tensor:
    return torch.zeros(queries, S).masked_fill(torch.ones(queries, S).triu(1).bool(), -math.inf)


def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    times = q.shape[1] // k.shape[1]
    if times > 1:
        k, v = (
            x[:, :, None].expand(B, x.shape[1], times, S, D).reshape(B, H, S, D) for x in (k, v)
        )
    logits = torch.matmul(q, k.transpose(2, 3)) * SCALE + causal(q.shape[2])
    weights = F.softmax(logits, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(F.dropout(weights, 0.5, training=False), v)


def written_in_place(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (x.repeat_interleave(H // x.shape[1], dim=1) for x in (k, v))
    logits = torch.matmul(q, k.mT).mul_(SCALE)
    logits[..., torch.isneginf(causal(q.shape[2]))] = -math.inf
    return logits.softmax(-1).matmul(v)


class Told(Observer):
    def __init__(self) -> None:
        self.operands: Counter[str] = Counter()
        self.outputs: list[tuple[str, tuple[int, ...]]] = []

    def operand(self, slot: Slot, copy: int, tensor, quantized) -> None:  # type: ignore[no-untyped-def]
        self.operands[slot.operand] += 1

    def output(self, layer, copy, output_MN) -> None:  # type: ignore[no-untyped-def]
        self.outputs.append((layer.name, tuple(output_MN.shape)))
