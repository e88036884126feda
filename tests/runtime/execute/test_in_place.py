"""Models that write to the results of their layers, as `nn.ReLU(inplace=True)` does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qrole.execute import Observer, executing
from tests.runtime.execute.conftest import plan_of, products, randn


class _Kept(Observer):
    def __init__(self) -> None:
        self.outputs: list[torch.Tensor] = []

    def output(self, layer, copy, output_MN) -> None:  # type: ignore[no-untyped-def]
        self.outputs.append(output_MN)


class _Writes(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(64, 32, bias=False), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.kind == "function":
            return F.relu(y, inplace=True)
        if self.kind == "operator":
            y *= 2.0
        elif self.kind == "part":
            y[..., :8] = 0.0
        elif self.kind == "out":
            with torch.no_grad():
                torch.mul(y.detach(), 0.0, out=y.detach())
        return y


@pytest.mark.parametrize("factory", ["high_precision", "mxfp8"])
@pytest.mark.parametrize("kind", ["function", "operator", "part", "out"])
@pytest.mark.parametrize("leading", [(16,), (2, 8)], ids=["matrix", "batch"])
def test_outputs_are_those_before_the_write(
    factory: str, kind: str, leading: tuple[int, ...]
) -> None:
    module, x, kept = _Writes(kind), randn(*leading, 64, seed=1).requires_grad_(), _Kept()
    with executing(module, plan_of(module, factory), observer=kept):
        y = module(x)
        y.sum().backward()
    x_MK, w = x.detach().reshape(-1, 64), module.linear.weight.detach()
    expected = x_MK @ w.t()
    if factory == "mxfp8":
        expected = products(factory, x_MK, w, torch.zeros(16, 32)).y
    torch.testing.assert_close(kept.outputs[0], expected, rtol=0, atol=1e-5)
    assert not torch.equal(y.detach().reshape(-1, 32), kept.outputs[0])


def test_in_inference_mode() -> None:
    module, x, kept = _Writes("function"), randn(16, 64, seed=1), _Kept()
    with torch.inference_mode(), executing(module, plan_of(module, "mxfp8"), observer=kept):
        y = module(x)
        assert bool((kept.outputs[0] < 0).any())
        assert torch.equal(y, kept.outputs[0].relu())
