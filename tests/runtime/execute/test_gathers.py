"""Experts' matrices copied side by side, one per row: products of each expert with its own rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from qrole.execute import Observer, executing, layers_of
from qrole.roles import Slot
from tests.runtime.execute.conftest import plan_of, products, randn

E, ROWS, K, N = 4, 16, 64, 32
IDS = torch.arange(E).repeat(ROWS)  # Row i * E + e belongs to expert e.


class _Experts(nn.Module):
    def __init__(self, up: Callable[..., torch.Tensor], down: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.hidden_dim = K
        self.up_proj = nn.Parameter(randn(E, N, K, seed=8))
        self.down_proj = nn.Parameter(randn(E, K, N, seed=9))
        self.steps = up, down

    def forward(self, x_SK: torch.Tensor, ids: torch.Tensor = IDS) -> torch.Tensor:
        up, down = self.steps
        return down(up(x_SK, self.up_proj, ids), self.down_proj, ids)


def _weight_left(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.bmm(w[ids], x.unsqueeze(-1)).squeeze(-1)


def _weight_right(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.bmm(x.unsqueeze(1), w.mT[ids]).squeeze(1)


def _selected(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return (x.unsqueeze(1) @ torch.index_select(w, 0, ids).transpose(1, 2)).squeeze(1)


def _einsum(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.einsum("sk,snk->sn", x, w[ids, ...])


def _in_place_bias(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return _weight_left(x, w, ids).add_(torch.zeros(()))


def _halves(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    first, second = w[ids].chunk(2, dim=1)
    rows = x.unsqueeze(-1)
    return torch.cat([torch.bmm(half, rows).squeeze(-1) for half in (first, second)], dim=1)


def _places(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The same copies in two batches."""
    copies, half = w[ids].mT, len(ids) // 2
    parts = [x[:half].unsqueeze(1) @ copies[:half], x[half:].unsqueeze(1) @ copies[half:]]
    return torch.cat(parts).squeeze(1)


class _Told(Observer):
    def __init__(self) -> None:
        self.operands: Counter[tuple[str, int]] = Counter()

    def operand(self, slot: Slot, copy: int, tensor, quantized) -> None:  # type: ignore[no-untyped-def]
        self.operands[(f"{slot.group} {slot.operand}", copy)] += 1


@pytest.mark.parametrize(
    "up", [_weight_left, _weight_right, _selected, _einsum, _in_place_bias, _halves]
)
def test_gathered_experts(up: Callable[..., torch.Tensor]) -> None:
    module, x = _Experts(up, _weight_left), randn(ROWS * E, K, seed=10).requires_grad_()
    dy, told = randn(ROWS * E, K, seed=11), _Told()
    with executing(module, plan_of(module, "mxfp8"), observer=told) as run:
        y = module(x)
        y.backward(dy)
    assert run.never_ran() == []
    down_rows = {copy: n for (layer, copy), n in run.rows.items() if layer.group == "down_proj"}
    assert down_rows == dict.fromkeys(range(E), ROWS)
    assert all(told.operands[("down_proj weight", e)] == 1 for e in range(E))
    for e in range(E):
        w_up, w_down = module.up_proj[e].detach(), module.down_proj[e].detach()
        first = products("mxfp8", x.detach()[e::E], w_up, torch.zeros(ROWS, N))
        second = products("mxfp8", first.y, w_down, dy[e::E])
        torch.testing.assert_close(y[e::E], second.y, rtol=0, atol=1e-4)
        assert module.down_proj.grad is not None
        torch.testing.assert_close(module.down_proj.grad[e], second.dw, rtol=0, atol=1e-4)
        if up is _halves:  # dx is the sum of two products of half the columns.
            continue
        first = products("mxfp8", x.detach()[e::E], w_up, second.dx)
        assert x.grad is not None
        assert module.up_proj.grad is not None
        torch.testing.assert_close(x.grad[e::E], first.dx, rtol=0, atol=1e-4)
        torch.testing.assert_close(module.up_proj.grad[e], first.dw, rtol=0, atol=1e-4)


def test_some_places_of_a_gather() -> None:
    whole, parts = _Experts(_weight_left, _weight_left), _Experts(_places, _places)
    x, found = randn(ROWS * E, K, seed=10), []
    for module in (whole, parts):
        with torch.no_grad(), executing(module, plan_of(module, "mxfp8")) as run:
            found.append(module(x))
        assert run.never_ran() == []
    assert torch.equal(*found)
    with torch.inference_mode(), executing(parts, plan_of(parts, "mxfp8")):
        assert torch.equal(parts(x), found[0])


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_checkpointed_gathers(reentrant: bool) -> None:
    module, x = _Experts(_weight_left, _weight_left), randn(ROWS * E, K, seed=10).requires_grad_()
    plan, steps = plan_of(module, "mxfp8"), []
    for checkpointed in (False, True):
        with executing(module, plan) as run:
            y = checkpoint(module, x, use_reentrant=reentrant) if checkpointed else module(x)
            y.square().sum().backward()
        assert set(run.rows.values()) == {ROWS}
        steps.append([t.grad for t in (x, *module.parameters()) if t.grad is not None])
        x.grad = None
        module.zero_grad()
    assert len(steps[0]) == 3
    for plain, recomputed in zip(*steps, strict=True):
        assert torch.equal(plain, recomputed)


def test_a_dead_expert_has_no_rows_and_a_gradient_of_zeros() -> None:
    module, x = _Experts(_weight_left, _weight_left), randn(8, K, seed=10)
    plan = plan_of(module, "mxfp8")
    with executing(module, plan) as run:
        module(x, torch.tensor([0, 2, 2, 0, -1, 3, 0, 2])).sum().backward()
    up = layers_of(plan)[0]
    assert [run.rows[(up, e)] for e in range(E)] == [3, 0, 3, 2]
    assert module.up_proj.grad is not None
    assert not module.up_proj.grad[1].any()


def test_copies_read_in_an_unknown_way_are_reported() -> None:
    def scaled(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return (w[ids] * x.unsqueeze(1)).sum(-1)

    module = _Experts(scaled, _weight_left)
    with executing(module, plan_of(module, "mxfp8")) as run:
        module(randn(ROWS * E, K, seed=10))
    assert [layer.group for layer in run.never_ran()] == ["up_proj"]
    assert {layer.group: names for layer, names in run.readers.items()} == {"up_proj": {"mul"}}
