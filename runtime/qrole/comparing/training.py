"""Training under several plans: same start, same data, same seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any

import torch
from torch import nn

from qrole.comparing.outputs import Batch, Objective, call_model, output_of
from qrole.comparing.report import TrainingReport
from qrole.execute import PlanState, executing
from qrole.plans import Plan

__all__ = ["train", "training_report"]

_DIVERGED = 0.05

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]
Curves = tuple[list[float], list[float]]


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """What trains where the model file brings no `optimizer(parameters)`."""
    return torch.optim.AdamW(parameters, lr=1e-4)


def train(
    model: nn.Module,
    plan: Plan,
    batches: Sequence[Batch],
    objective: Objective,
    *,
    steps: int,
    make_optimizer: MakeOptimizer | None,
    seed: int,
) -> Curves:
    """Trains a model and puts it back to where it was.

    Args:
        model: The model.
        plan: What it computes with.
        batches: Fed in turn, from the first again after the last.
        objective: Gives the loss.
        steps: Number of updates.
        make_optimizer: From parameters to an optimizer; AdamW with lr 1e-4 where None.
        seed: Step i draws its random numbers from seed + i.

    Returns:
        Loss and gradient norm of each step.
    """
    losses, norms, state = [], [], PlanState(plan, seed=seed)
    with _training(model):
        trainable = [p for p in model.parameters() if p.requires_grad]
        optimizer = (make_optimizer or adamw)(trainable)
        for i, batch in enumerate(islice(cycle(batches), steps)):
            torch.manual_seed(seed + i)
            with executing(model, plan, state=state), torch.enable_grad():
                raw = call_model(model, batch)
                loss = objective(raw, output_of(raw), batch)
                torch.autograd.backward(loss)
            losses.append(loss.item())
            norms.append(_norm(trainable))
            optimizer.step()
            optimizer.zero_grad()
    return losses, norms


def _norm(parameters: list[nn.Parameter]) -> float:
    norms = [p.grad.float().norm() for p in parameters if p.grad is not None]
    return torch.stack(norms).norm().item() if norms else 0.0


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """Training mode; weights, buffers, gradients and modes are as before when it is left."""
    modes = {module: module.training for module in model.modules()}
    grads = {p: p.grad for p in model.parameters()}
    tensors = [*model.parameters(), *model.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        for p in grads:
            p.grad = None
        model.train()
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
        for p, grad in grads.items():
            p.grad = grad
        for module, mode in modes.items():
            module.training = mode


def training_report(name: str, curves: Curves, reference: Curves) -> TrainingReport:
    """A training run against the reference's; the reference against itself."""
    losses, norms = curves
    expected, expected_norms = reference
    differences = [abs(a - b) for a, b in zip(losses, expected, strict=True)]
    limit = _DIVERGED * sum(map(abs, expected)) / len(expected)
    ratios = [a / b for a, b in zip(norms, expected_norms, strict=True) if b]
    return TrainingReport(
        name=name,
        losses=tuple(losses),
        grad_norms=tuple(norms),
        divergence_step=next((i for i, d in enumerate(differences) if not d <= limit), None),
        max_loss_diff=max(differences, key=lambda d: math.inf if math.isnan(d) else d),
        final_loss_diff=losses[-1] - expected[-1],
        grad_norm_ratio=sum(ratios) / len(ratios) if ratios else None,
    )
