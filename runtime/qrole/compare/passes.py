"""The reference run and the candidate runs, batch by batch, and what is kept of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from qrole.compare.meter import Meter
from qrole.compare.moments import ErrorMoments
from qrole.compare.outputs import Batch, Objective, OutputView, call_model, output_of
from qrole.execute import Layer, Observer, PlanState, WeightCache, executing
from qrole.plan import Plan

__all__ = ["Candidate", "ReferencePass", "run_candidate", "run_reference"]

Tape = dict[tuple[Layer, int], list[torch.Tensor]]


@dataclass
class Candidate:
    """One plan and everything measured of it so far.

    Attributes:
        plan: The plan.
        state: What its quantizers remember between batches.
        meter: Slots and GEMMs.
        layers: Forward results against the reference run's.
        rerouted: Calls whose results have other shapes than the reference run's.
        output: The model's output.
        kl_sum: Sum over positions of KL(reference || candidate).
        agreements: Positions with the same best class.
        positions: Positions.
        loss_sum: Sum over batches.
        grads: Per parameter.
        rows: Rows per layer and expert.
        readers: Functions that read a weight and were no product.
    """

    plan: Plan
    state: PlanState
    meter: Meter = field(default_factory=Meter)
    layers: dict[Layer, ErrorMoments] = field(default_factory=lambda: defaultdict(ErrorMoments))
    rerouted: dict[Layer, int] = field(default_factory=lambda: defaultdict(int))
    output: ErrorMoments = field(default_factory=ErrorMoments)
    kl_sum: float = 0.0
    agreements: int = 0
    positions: int = 0
    loss_sum: float = 0.0
    grads: dict[str, ErrorMoments] = field(default_factory=lambda: defaultdict(ErrorMoments))
    rows: dict[tuple[Layer, int], int] = field(default_factory=lambda: defaultdict(int))
    readers: dict[Layer, set[str]] = field(default_factory=lambda: defaultdict(set))


@dataclass(frozen=True)
class ReferencePass:
    """What the candidates of one batch are compared with.

    Attributes:
        output: The model's output.
        loss: The scalar.
        layers: Forward results by layer and expert, in the order of the calls.
        grads: Gradients by parameter name; empty without a backward pass.
        mask: Rows of the output that count; None for all.
    """

    output: OutputView
    loss: float
    layers: Tape
    grads: dict[str, torch.Tensor]
    mask: torch.Tensor | None


class _Recorder(Observer):
    def __init__(self) -> None:
        self.tape: Tape = defaultdict(list)

    def output(self, layer: Layer, copy: int, output_MN: torch.Tensor) -> None:
        self.tape[(layer, copy)].append(output_MN)


class _Comparer(Meter):
    """A meter that also compares forward results with the reference's tape."""

    def attach(self, candidate: Candidate, tape: Tape) -> None:
        self._candidate = candidate
        self._tape = tape
        self._position: dict[tuple[Layer, int], int] = defaultdict(int)

    def output(self, layer: Layer, copy: int, output_MN: torch.Tensor) -> None:
        key = (layer, copy)
        index = self._position[key]
        self._position[key] += 1
        kept = self._tape.get(key, [])
        if index >= len(kept) or kept[index].shape != output_MN.shape:
            self._candidate.rerouted[layer] += 1
            return
        moments = self._candidate.layers[layer]
        moments.add(kept[index], output_MN)
        if moments.nonfinite:
            self._blame(f"output of {layer.name}")


def run_reference(
    model: nn.Module,
    state: PlanState,
    batch: Batch,
    objective: Objective,
    weights: WeightCache,
    *,
    backward: bool,
    seed: int,
) -> ReferencePass:
    """Runs one batch under the reference plan and keeps what candidates are compared with."""
    recorder = _Recorder()
    torch.manual_seed(seed)
    with (
        executing(model, state.plan, observer=recorder, weights=weights, state=state),
        _no_grads_left(model),
    ):
        output, loss = _forward(model, batch, objective, backward)
        grads = {}
        if backward:
            torch.autograd.backward(loss)
            named = model.named_parameters()
            grads = {name: p.grad for name, p in named if p.grad is not None}
    view = OutputView(output.tensor.detach(), output.name)
    return ReferencePass(view, loss.item(), recorder.tape, grads, _mask(view.tensor, batch))


def run_candidate(
    model: nn.Module,
    candidate: Candidate,
    batch: Batch,
    objective: Objective,
    reference: ReferencePass,
    weights: WeightCache,
    *,
    seed: int,
) -> None:
    """Runs one batch under a candidate's plan and adds what it finds."""
    assert isinstance(candidate.meter, _Comparer)
    candidate.meter.attach(candidate, reference.layers)
    torch.manual_seed(seed)
    with (
        executing(
            model,
            candidate.plan,
            observer=candidate.meter,
            weights=weights,
            state=candidate.state,
        ) as run,
        _no_grads_left(model),
        _comparing_grads(model, reference.grads, candidate.grads),
    ):
        output, loss = _forward(model, batch, objective, bool(reference.grads))
        if reference.grads:
            torch.autograd.backward(loss)
    candidate.loss_sum += loss.item()
    for key, count in run.rows.items():
        candidate.rows[key] += count
    for layer, names in run.readers.items():
        candidate.readers[layer] |= names
    _compare_outputs(candidate, reference, output.tensor.detach(), objective.logits)


def new_candidate(plan: Plan, seed: int) -> Candidate:
    """A candidate with nothing measured yet."""
    return Candidate(plan, PlanState(plan, seed=seed), meter=_Comparer())


def _forward(
    model: nn.Module, batch: Batch, objective: Callable[..., torch.Tensor], backward: bool
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
    candidate: Candidate, reference: ReferencePass, output: torch.Tensor, logits: bool
) -> None:
    expected = reference.output.tensor
    if reference.mask is not None:
        expected, output = expected[reference.mask], output[reference.mask]
    candidate.output.add(expected, output)
    if candidate.output.nonfinite:
        candidate.meter.first_nonfinite = candidate.meter.first_nonfinite or "the model's output"
    if not logits:
        return
    p_NV, q_NV = expected.flatten(0, -2), output.flatten(0, -2)
    for p, q in zip(torch.split(p_NV, 256), torch.split(q_NV, 256), strict=True):
        log_p, log_q = p.float().log_softmax(-1), q.float().log_softmax(-1)
        candidate.kl_sum += float(torch.sum(log_p.exp() * (log_p - log_q)))
        candidate.agreements += int((p.argmax(-1) == q.argmax(-1)).sum())
    candidate.positions += p_NV.shape[0]


@contextmanager
def _no_grads_left(model: nn.Module) -> Iterator[None]:
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
    model: nn.Module, expected: dict[str, torch.Tensor], found: dict[str, ErrorMoments]
) -> Iterator[None]:
    """Compares each gradient as it is complete, and frees it at once."""
    handles = []

    def comparer(name: str) -> Callable[[torch.Tensor], None]:
        def hook(parameter: Any) -> None:
            found[name].add(expected[name], parameter.grad)
            parameter.grad = None

        return hook

    try:
        for name, parameter in model.named_parameters():
            if name in expected:
                hook = comparer(name)
                register: Any = parameter.register_post_accumulate_grad_hook
                handles.append(register(hook))
        yield
    finally:
        for handle in handles:
            handle.remove()
