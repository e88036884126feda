"""One batch under the reference plan, then under each candidate's, and what is kept of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from qrole.comparing.candidate import Candidate, OutputStats
from qrole.comparing.meter import Tape, all_finite
from qrole.comparing.moments import ErrorMoments
from qrole.comparing.outputs import (
    Batch,
    Objective,
    OutputView,
    call_model,
    output_of,
    running_forward,
)
from qrole.errors import UsageError
from qrole.execute import Layer, Observer, PlanState, WeightCache, executing

__all__ = ["Reference", "run_candidate", "run_reference"]

_CACHED = 1 << 18
"""Elements of which a processor's cache holds a few copies."""


@dataclass(frozen=True)
class Reference:
    """What the candidates of one batch are compared with.

    Attributes:
        output: The model's output, without rows that do not count.
        mask: Rows of the output that count; None for all.
        loss: The scalar.
        layers: Forward results by layer and expert, in the order of the calls.
        grads: Gradients by parameter name; empty without a backward pass.
        first_nonfinite: Where NaN or infinity first appeared; `""` if nowhere.
    """

    output: torch.Tensor
    mask: torch.Tensor | None
    loss: float
    layers: Tape
    grads: dict[str, torch.Tensor]
    first_nonfinite: str


class _Recorder(Observer):
    def __init__(self, keep: bool) -> None:
        self.tape: Tape = defaultdict(list)
        self.first_nonfinite = ""
        self._keep = keep

    def output(self, layer: Layer, copy: int, output_MN: torch.Tensor) -> None:
        if not self.first_nonfinite and not all_finite(output_MN):
            self.first_nonfinite = f"output of {layer.name}"
        if self._keep:
            self.tape[(layer, copy)].append(output_MN)


def run_reference(
    model: nn.Module,
    state: PlanState,
    batch: Batch,
    objective: Objective,
    weights: WeightCache,
    *,
    backward: bool,
    keep_layers: bool,
    seed: int,
) -> Reference:
    """Runs one batch under the reference plan and keeps what candidates are compared with.

    Args:
        model: The model; its gradients are left as they were.
        state: Of the reference plan.
        batch: Arguments of one forward.
        objective: Gives the scalar to differentiate.
        weights: Quantized weights.
        backward: Run the backward pass too.
        keep_layers: Keep every layer's forward result.
        seed: Of whatever draws random numbers in the model.
    """
    recorder = _Recorder(keep_layers)
    torch.manual_seed(seed)
    with (
        _own_grads(model),
        executing(model, state.plan, observer=recorder, weights=weights, state=state),
    ):
        with running_forward(model):
            view, loss = _forward(model, batch, objective, backward)
        grads = {}
        if backward:
            _check_differentiable(model, loss)
            torch.autograd.backward(loss)
            named = model.named_parameters()
            grads = {name: p.grad for name, p in named if p.grad is not None}
    output, mask = view.tensor.detach(), _mask(view.tensor, batch)
    blame = recorder.first_nonfinite or ("" if all_finite(output) else "the model's output")
    rows = output if mask is None else output[mask]
    return Reference(rows, mask, loss.item(), recorder.tape, grads, blame)


def _check_differentiable(model: nn.Module, loss: torch.Tensor) -> None:
    if loss.requires_grad:
        return
    frozen = not any(p.requires_grad for p in model.parameters())
    raise UsageError(
        "no parameter of the model requires a gradient"
        if frozen
        else "the loss does not depend on a parameter that requires a gradient",
        expected="parameters to train, for a backward pass",
        hint="compare the forward pass alone (--forward-only), or unfreeze parameters",
    )


def run_candidate(
    model: nn.Module,
    candidate: Candidate,
    batch: Batch,
    objective: Objective,
    reference: Reference,
    weights: WeightCache,
    *,
    seed: int,
) -> None:
    """Runs one batch under a candidate's plan and adds what it finds."""
    if candidate.meter is not None:
        candidate.meter.compare_layers_with(reference.layers)
    torch.manual_seed(seed)
    with (
        _own_grads(model),
        executing(
            model,
            candidate.plan,
            observer=candidate.meter,
            weights=weights,
            state=candidate.state,
        ) as run,
        _comparing_grads(model, reference.grads, candidate),
    ):
        view, loss = _forward(model, batch, objective, bool(reference.grads))
        _compare_outputs(candidate, reference, view.tensor.detach(), objective.logits)
        if reference.grads:
            torch.autograd.backward(loss)
    candidate.output.loss_sum += loss.item()
    for key, count in run.rows.items():
        candidate.rows[key] += count
    for layer, names in run.readers.items():
        candidate.readers[layer] |= names


def _forward(
    model: nn.Module, batch: Batch, objective: Objective, backward: bool
) -> tuple[OutputView, torch.Tensor]:
    with torch.set_grad_enabled(backward):
        raw = call_model(model, batch)
        output = output_of(raw)
        return output, objective(raw, output, batch)


def _mask(output: torch.Tensor, batch: Batch) -> torch.Tensor | None:
    """Rows that count: padding of token batches does not."""
    mask = batch.get("attention_mask") if isinstance(batch, dict) else None
    if isinstance(mask, torch.Tensor) and mask.shape == output.shape[:2] and not mask.all():
        return mask.bool()
    return None


def _compare_outputs(
    candidate: Candidate, reference: Reference, output: torch.Tensor, logits: bool
) -> None:
    if candidate.meter is not None:
        candidate.blame(candidate.meter.first_nonfinite)
    found, expected = candidate.output, reference.output
    output = output if reference.mask is None else output[reference.mask]
    found.error.add(expected, output)
    if found.error.nonfinite:
        candidate.blame("the model's output")
    if logits:
        _compare_classes(found, expected.flatten(0, -2), output.flatten(0, -2))


def _compare_classes(found: OutputStats, p_NV: torch.Tensor, q_NV: torch.Tensor) -> None:
    """Adds the logits of N positions, V classes each, a few rows at a time."""
    rows = max(1, _CACHED // p_NV.shape[1])
    for p, q in zip(torch.split(p_NV, rows), torch.split(q_NV, rows), strict=True):
        log_p, log_q = p.float().log_softmax(-1), q.float().log_softmax(-1)
        found.kl_sum += torch.sum(log_p.exp().mul_(log_p.sub_(log_q))).item()
        best = p.argmax(-1, keepdim=True)
        found.agreements += int((q.gather(-1, best).squeeze(-1) == q.amax(-1)).sum())
    found.positions += p_NV.shape[0]


@contextmanager
def _own_grads(model: nn.Module) -> Iterator[None]:
    """Gradients that were there before come back afterwards; none of the run's stay."""
    before = {p: p.grad for p in model.parameters()}
    for p in before:
        p.grad = None
    try:
        yield
    finally:
        for p, grad in before.items():
            p.grad = grad


@contextmanager
def _comparing_grads(
    model: nn.Module, expected: dict[str, torch.Tensor], candidate: Candidate
) -> Iterator[None]:
    """Compares each gradient as soon as it is complete, and frees it at once."""
    handles: list[Any] = []

    def comparer(name: str) -> Callable[[torch.Tensor], None]:
        def compare(parameter: torch.Tensor) -> None:
            moments: ErrorMoments = candidate.grads[name]
            assert parameter.grad is not None, "called when it is there"
            moments.add(expected[name], parameter.grad)
            parameter.grad = None
            if moments.nonfinite:
                candidate.blame(_first(candidate) or f"gradient of {name}")

        return compare

    try:
        for name, parameter in model.named_parameters():
            if name in expected:
                register: Any = parameter.register_post_accumulate_grad_hook
                handles.append(register(comparer(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()
        candidate.blame(_first(candidate))


def _first(candidate: Candidate) -> str:
    return candidate.meter.first_nonfinite if candidate.meter is not None else ""
