"""`compare`: one reference run, any number of candidates, one report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from qrole.api import as_factory
from qrole.compare.data import Data, DataOptions, load_data
from qrole.compare.moments import ErrorMoments
from qrole.compare.outputs import Objective
from qrole.compare.passes import Candidate, new_candidate, run_candidate, run_reference
from qrole.compare.report import (
    CandidateReport,
    GemmReport,
    LayerReport,
    ModelReport,
    ParameterReport,
    Report,
    SlotReport,
)
from qrole.emitters import walk
from qrole.errors import NothingMatchedError, UsageError
from qrole.execute import Layer, PlanState, WeightCache, layers_of
from qrole.loading import LoadedModel, load_model
from qrole.plan import Plan, build_plan
from qrole.plugins import Factory
from qrole.quantizers import IdentityQuantizer
from qrole.roles import QuantizerRole, Usage

__all__ = ["compare"]

FactoryLike = str | Callable[..., Any] | Factory
Progress = Callable[[int, int, str], None]


def compare(
    model: str | LoadedModel | nn.Module,
    factories: FactoryLike | Sequence[FactoryLike],
    *,
    reference: FactoryLike | None = None,
    data: DataOptions | None = None,
    backward: bool = True,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    trust_remote_code: bool = False,
    on_progress: Progress | None = None,
) -> Report:
    """Measures what plans do to a model's numbers, forward and backward.

    Args:
        model: A module, or what the command line takes.
        factories: The candidates; each is run against the same reference run.
        reference: Factory of the reference plan; None is high precision.
        data: What to feed; default: what the model's source offers.
        backward: Run the backward pass too.
        dtype: Cast the parameters; None leaves them.
        seed: Of everything random.
        trust_remote_code: Run code that a model directory brings.
        on_progress: Told of runs done, runs in total, and what is running.

    Raises:
        NothingMatchedError: No covered layer ran, or no candidate quantizes anything.
        QroleError: The model, the data or a factory is unusable; see `qrole.errors`.
    """
    loaded = _loaded(model, trust_remote_code)
    module = loaded.module
    assert module is not None
    if dtype is not None:
        module.to(dtype)
    inventory = walk(loaded)
    base = build_plan(inventory, as_factory(reference or _identity))
    given = (
        [factories] if isinstance(factories, (str, Factory)) or callable(factories) else factories
    )
    candidates = [new_candidate(build_plan(inventory, as_factory(f)), seed) for f in given]
    _check_candidates(candidates)
    inputs = load_data(loaded, data or DataOptions())
    objective = Objective(loaded.loss, module, seed)
    loss = _run(module, base, candidates, inputs, objective, backward, seed, on_progress)
    name = base.factory.name if reference is not None else "high precision"
    return Report(
        model=loaded.spec,
        dtype=str(next(module.parameters()).dtype).removeprefix("torch."),
        reference=name,
        data={
            "source": inputs.source,
            "batches": len(inputs.batches),
            "samples": inputs.samples,
            "tokens": inputs.tokens,
            "sha256": inputs.sha256,
        },
        seed=seed,
        backward=backward,
        objective=objective.kind,
        candidates=tuple(
            _candidate_report(c, loss, len(inputs.batches), objective.logits) for c in candidates
        ),
    )


def _identity(role: object) -> IdentityQuantizer:
    return IdentityQuantizer()


def _loaded(model: str | LoadedModel | nn.Module, trust_remote_code: bool) -> LoadedModel:
    if isinstance(model, nn.Module):
        return LoadedModel(type(model).__name__, "python", module=model)
    if isinstance(model, str):
        model = load_model(model, weights=True, trust_remote_code=trust_remote_code)
    if model.module is None:
        raise UsageError(
            f"{model.spec} holds weights only, and compare has to run a model",
            expected="a Python file, or a directory with a config.json that names the model",
            hint="add config.json, or write a model.py whose build() loads these weights",
        )
    return model


def _check_candidates(candidates: list[Candidate]) -> None:
    for candidate in candidates:
        if not any(layer.quantized for layer in layers_of(candidate.plan)):
            raise NothingMatchedError(
                f"factory {candidate.plan.factory.name} quantizes no layer of this model",
                expected="at least one slot that is not kept in high precision",
                hint="`qrole inspect` shows what the factory answers for each slot",
            )


def _run(
    module: nn.Module,
    base: Plan,
    candidates: list[Candidate],
    inputs: Data,
    objective: Objective,
    backward: bool,
    seed: int,
    on_progress: Progress | None,
) -> float:
    """Runs everything; the sum of the reference's losses."""
    weights, total, done, loss = WeightCache(), len(inputs.batches) * (1 + len(candidates)), 0, 0.0
    state = PlanState(base, seed=seed)
    for i, batch in enumerate(inputs.batches):
        reference = run_reference(
            module, state, batch, objective, weights, backward=backward, seed=seed + i
        )
        loss += reference.loss
        done += 1
        for candidate in candidates:
            if on_progress is not None:
                on_progress(done, total, candidate.plan.factory.name)
            run_candidate(module, candidate, batch, objective, reference, weights, seed=seed + i)
            done += 1
    return loss


def _candidate_report(c: Candidate, loss: float, batches: int, logits: bool) -> CandidateReport:
    layers = layers_of(c.plan)
    ran = {layer for layer, _ in c.rows}
    if not ran:
        raise NothingMatchedError(
            "none of the covered layers ran on this data",
            expected="a forward pass that multiplies by at least one covered weight",
            hint="check that the inputs reach the layers that `qrole inspect` lists",
        )
    return CandidateReport(
        factory=c.plan.factory.name,
        factory_sha256=c.plan.factory.sha256,
        formats=dict(sorted(c.plan.counts().items())),
        model=_model_report(c, loss, batches, logits),
        layers=tuple(_layer_report(c, layer) for layer in layers if layer in ran),
        slots=_slot_reports(c),
        gemms=tuple(
            GemmReport(layer.module, layer.group, gemm.value, m.sqnr_db, m.rel_err, m.max_abs_err)
            for (layer, gemm), m in c.meter.gemms.items()
        ),
        parameters=tuple(
            ParameterReport(name, m.cosine, m.rel_err, _norm_ratio(m))
            for name, m in sorted(c.grads.items())
        ),
        idle_experts=_idle_experts(c, layers),
        not_computed={
            layer.name: sorted(c.readers.get(layer, ())) for layer in layers if layer not in ran
        },
    )


def _norm_ratio(m: ErrorMoments) -> float | None:
    return (m.test_sq / m.reference_sq) ** 0.5 if m.reference_sq else None


def _model_report(c: Candidate, loss: float, batches: int, logits: bool) -> ModelReport:
    whole = ErrorMoments()
    for moments in c.grads.values():
        whole.reference_sq += moments.reference_sq
        whole.test_sq += moments.test_sq
        whole.error_sq += moments.error_sq
    return ModelReport(
        output="logits" if logits else "output",
        sqnr_db=c.output.sqnr_db,
        cosine=c.output.cosine,
        rel_err=c.output.rel_err,
        kl=c.kl_sum / c.positions if c.positions else None,
        top1_agreement=c.agreements / c.positions if c.positions else None,
        loss_reference=loss / batches,
        loss=c.loss_sum / batches,
        loss_diff=(c.loss_sum - loss) / batches,
        grad_cosine=whole.cosine if c.grads else None,
        grad_rel_err=whole.rel_err if c.grads else None,
        first_nonfinite=c.meter.first_nonfinite,
    )


def _layer_report(c: Candidate, layer: Layer) -> LayerReport:
    m = c.layers.get(layer, ErrorMoments())
    formats = [layer.slots[o].rowwise for o in ("input", "weight") if o in layer.slots]
    return LayerReport(
        module=layer.module,
        group=layer.group,
        formats=" x ".join(f.label for f in formats if f is not None),
        sqnr_db=m.sqnr_db,
        cosine=m.cosine,
        rel_err=m.rel_err,
        rerouted=c.rerouted.get(layer, 0),
    )


def _slot_reports(c: Candidate) -> tuple[SlotReport, ...]:
    found = []
    for decision in c.plan:
        for usage in Usage:
            stats = c.meter.slots.get((decision.slot.id, usage))
            if stats is None:
                continue
            m, spread, form = stats.error, stats.scales, getattr(decision, usage.value)
            role = decision.slot.role or QuantizerRole()
            found.append(
                SlotReport(
                    slot=decision.slot.id,
                    module=decision.slot.module,
                    module_type=role.module_type,
                    tensor_type=role.tensor_type,
                    role_name=role.name,
                    operand=decision.slot.operand,
                    usage=usage.value,
                    format=form.label,
                    numel=m.numel,
                    cur_amax=stats.amax,
                    sqnr_db=m.sqnr_db,
                    rel_err=m.rel_err,
                    mse=m.mse,
                    max_abs_err=m.max_abs_err,
                    underflows=_share(stats.nonzero - stats.nonzero_codes, stats.coded),
                    overflows=_share(stats.saturated, stats.coded),
                    scale_inv_min=spread.low if spread.count else None,
                    scale_inv_max=spread.high if spread.count else None,
                    scale_inv_std=spread.std,
                    dynamic_range=stats.dynamic_range,
                )
            )
    return tuple(found)


def _share(count: int, total: int) -> float | None:
    return 100.0 * count / total if total else None


def _idle_experts(c: Candidate, layers: tuple[Layer, ...]) -> dict[str, list[int]]:
    found = {}
    for layer in layers:
        idle = [i for i in range(layer.copies) if not c.rows.get((layer, i))]
        if layer.copies > 1 and idle:
            found[layer.name] = idle
    return found
