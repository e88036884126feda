"""Training steps of small modules whose every result can be compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import qrole.modules as M
from qrole.autocasting import autocast
from qrole.recipes import Recipe
from tests.kernels.bitexact import assert_bits_equal

BF16 = torch.bfloat16
TOKENS, WIDTH = 64, 128
SPLITS = [32, 0, 32]


@dataclass(frozen=True)
class Kind:
    """A kind of module: how it is built, and what its forward pass takes besides the input."""

    build: Callable[[], nn.Module]
    extra: tuple[Any, ...] = ()
    shape: tuple[int, ...] = (TOKENS, WIDTH)


KINDS: dict[str, Kind] = {
    "Linear": Kind(lambda: M.Linear(WIDTH, 2 * WIDTH, params_dtype=BF16)),
    "LayerNormLinear": Kind(lambda: M.LayerNormLinear(WIDTH, WIDTH, params_dtype=BF16)),
    "LayerNormMLP": Kind(
        lambda: M.LayerNormMLP(WIDTH, 2 * WIDTH, params_dtype=BF16, activation="swiglu")
    ),
    "GroupedLinear": Kind(lambda: M.GroupedLinear(3, WIDTH, WIDTH, params_dtype=BF16), (SPLITS,)),
    "ops.Linear": Kind(lambda: M.ops.Linear(WIDTH, WIDTH, dtype=BF16)),
    "ops.GroupedLinear": Kind(
        lambda: M.ops.GroupedLinear(3, WIDTH, WIDTH, dtype=BF16), (torch.tensor(SPLITS),)
    ),
    "TransformerLayer": Kind(
        lambda: M.TransformerLayer(
            WIDTH, 2 * WIDTH, 4, hidden_dropout=0.0, attention_dropout=0.0, params_dtype=BF16
        ),
        shape=(TOKENS // 2, 2, WIDTH),
    ),
}


@dataclass
class Results:
    """What one training step leaves behind."""

    tensors: dict[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]


def noise(*shape: int, seed: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def build(kind: str) -> nn.Module:
    """The module with the same parameters at every call; biases and norms are not trivial."""
    torch.manual_seed(7)
    module = KINDS[kind].build()
    for i, parameter in enumerate(module.parameters()):
        if parameter.dim() == 1:
            with torch.no_grad():
                parameter.add_(noise(*parameter.shape, seed=100 + i, dtype=parameter.dtype) * 0.1)
    return module


def step(
    module: nn.Module,
    recipe: Recipe | None,
    *,
    x: Tensor,
    dy: Tensor | None = None,
    extra: tuple[Any, ...] = (),
    seed: int = 0,
) -> Results:
    """One forward and backward pass with gradients that vary from element to element.

    The default generator is seeded before the forward pass, for stochastic rounding.
    """
    module.zero_grad(set_to_none=True)
    x = x.detach().clone().requires_grad_()
    torch.manual_seed(seed)
    with autocast(enabled=recipe is not None, recipe=recipe):
        y = module(x, *extra)
    y.backward(noise(*y.shape, seed=seed + 1, dtype=y.dtype) if dy is None else dy)
    assert x.grad is not None
    grads = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return Results({"output": y.detach(), "input gradient": x.grad, **grads})


def train(kind: str, recipe: Recipe | None, *, steps: int = 1) -> list[Results]:
    """Steps of one module on inputs that differ from step to step."""
    module, made = build(kind), KINDS[kind]
    return [
        step(module, recipe, x=noise(*made.shape, seed=10 + i), extra=made.extra, seed=20 + i)
        for i in range(steps)
    ]


def assert_same(given: Iterable[Results], expected: Iterable[Results]) -> None:
    for i, (a, b) in enumerate(zip(given, expected, strict=True)):
        assert a.tensors.keys() == b.tensors.keys()
        for name in a.tensors:
            assert_bits_equal(a[name], b[name], f"step {i}: {name}")


def differs(a: Results, b: Results) -> set[str]:
    """Names of the tensors that are not equal."""
    return {name for name in a.tensors if not torch.equal(a[name], b[name])}
