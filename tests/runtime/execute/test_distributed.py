"""Plans on two gloo ranks: every rank quantizes its own share, gradients are averaged."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from qrole.execute import executing
from tests.runtime.execute.conftest import plan_of, randn


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Linear(64, 96), nn.GELU()),
        nn.MultiheadAttention(96, 4, batch_first=True),
        nn.Linear(96, 32),
    )


def _forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    first, attention, last = model.children()
    hidden = first(x)
    return last(attention(hidden, hidden, hidden)[0])


class _Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = _model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _forward(self.layers, x)


def _share(rank: int) -> torch.Tensor:
    return randn(2, 8, 64, seed=rank)


def _expected_grads() -> dict[str, torch.Tensor]:
    """Average of what each share gives in one process."""
    total: dict[str, torch.Tensor] = {}
    for rank in range(2):
        model = _Whole()
        with executing(model, plan_of(model, "mxfp8")):
            model(_share(rank)).square().mean().backward()
        for name, p in model.named_parameters():
            assert p.grad is not None
            total[name] = total.get(name, torch.zeros(())) + p.grad / 2
    return total


def _ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def _fsdp2(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    assert isinstance(model, _Whole)
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def _gathered(parameter: torch.Tensor) -> torch.Tensor:
    full = getattr(parameter, "full_tensor", None)
    return full() if full is not None else parameter


def _rank(rank: int, port: int, wrap: Callable[[nn.Module], nn.Module]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    try:
        model = _Whole()
        plan = plan_of(model, "mxfp8")
        wrapped = wrap(model)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.5)
        losses = []
        with executing(wrapped, plan) as run:
            for step in range(2):
                optimizer.zero_grad()
                loss = wrapped(_share(rank)).square().mean()
                loss.backward()
                losses.append(loss.item())
                if step == 0:
                    found = {n: _gathered(p.grad) for n, p in model.named_parameters()}
                    for name, expected in _expected_grads().items():
                        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-6)
                optimizer.step()
        assert run.never_ran() == []
        assert losses[1] < losses[0], "the second step sees the weights that the first one left"
    finally:
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [_ddp, _fsdp2], ids=["DDP", "FSDP2"])
def test_two_ranks(wrap: Callable[[nn.Module], nn.Module]) -> None:
    mp.spawn(_rank, args=(_free_port(), wrap), nprocs=2)
