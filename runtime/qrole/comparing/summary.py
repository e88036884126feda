"""From what was accumulated to the values of a report."""

from __future__ import annotations

import math

from qrole.comparing.candidate import Candidate
from qrole.comparing.meter import Meter, ProductStats, RepresentationStats
from qrole.comparing.moments import ErrorMoments
from qrole.comparing.report import (
    CandidateReport,
    GemmReport,
    LayerReport,
    ModelReport,
    ParameterReport,
    SensitivityReport,
    SlotReport,
)
from qrole.errors import NothingMatchedError
from qrole.execute import Layer, layers_of
from qrole.plans import Decision
from qrole.roles import Gemm, QuantizerRole, Usage

__all__ = ["candidate_report", "sensitivity_report"]


def candidate_report(c: Candidate, reference_loss: float, batches: int) -> CandidateReport:
    """Everything measured of a candidate.

    Raises:
        NothingMatchedError: None of its layers ran.
    """
    layers = layers_of(c.plan)
    ran = {layer for layer, _ in c.rows}
    if not any(layer.quantized for layer in ran):
        raise NothingMatchedError(
            f"none of the layers that {c.name} quantizes ran on this data",
            expected="a forward pass that multiplies by at least one of their weights",
            hint="check that the inputs reach the layers that `qrole inspect` lists",
        )
    meter = c.meter
    assert meter is not None, "candidates are measured in detail"
    return CandidateReport(
        factory=c.name,
        factory_sha256=c.plan.factory.sha256,
        formats=dict(sorted(c.plan.counts().items())),
        model=_model_report(c, reference_loss, batches),
        layers=tuple(_layer_report(meter, layer) for layer in layers if layer in ran),
        slots=tuple(_slot_reports(c, meter)),
        gemms=tuple(_gemm_report(*key, stats) for key, stats in meter.gemms.items()),
        parameters=tuple(
            ParameterReport(name, m.cosine, m.rel_err, _norm_ratio(m))
            for name, m in sorted(c.grads.items())
        ),
        idle_experts=_idle_experts(c, layers),
        not_computed={
            layer.name: sorted(c.readers.get(layer, ()))
            for layer in layers
            if layer.quantized and (layer not in ran or (layer.is_attention and layer in c.readers))
        },
    )


def sensitivity_report(group: str, c: Candidate) -> SensitivityReport:
    """The model-level errors of one group quantized alone."""
    found = c.output
    return SensitivityReport(
        group=group,
        kl=found.kl_sum / found.positions if found.positions else None,
        rel_err=found.error.rel_err,
        grad_rel_err=c.all_grads.rel_err if c.grads else None,
    )


def _model_report(c: Candidate, reference_loss: float, batches: int) -> ModelReport:
    found, grads = c.output, c.all_grads
    positions = found.positions
    return ModelReport(
        output="logits" if positions else "output",
        sqnr_db=found.error.sqnr_db,
        cosine=found.error.cosine,
        rel_err=found.error.rel_err,
        kl=found.kl_sum / positions if positions else None,
        top1_agreement=found.agreements / positions if positions else None,
        loss_reference=reference_loss / batches,
        loss=found.loss_sum / batches,
        loss_diff=(found.loss_sum - reference_loss) / batches,
        grad_cosine=grads.cosine if c.grads else None,
        grad_rel_err=grads.rel_err if c.grads else None,
        first_nonfinite=c.first_nonfinite,
    )


def _gemm_report(layer: Layer, gemm: Gemm, stats: ProductStats) -> GemmReport:
    m = stats.error
    return GemmReport(
        module=layer.module,
        group=layer.group,
        gemm=gemm.value,
        sqnr_db=m.sqnr_db,
        rel_err=m.rel_err,
        max_abs_err=stats.max_abs_err,
        coverage=stats.coverage,
    )


def _layer_report(meter: Meter, layer: Layer) -> LayerReport:
    m = meter.layers.get(layer, ErrorMoments())
    formats = [layer.slots[o].rowwise for o in ("input", "weight", "qkv") if o in layer.slots]
    return LayerReport(
        module=layer.module,
        group=layer.group,
        formats=" x ".join(f.label for f in formats if f is not None),
        sqnr_db=m.sqnr_db,
        cosine=m.cosine,
        rel_err=m.rel_err,
        rerouted=meter.rerouted.get(layer, 0),
    )


def _slot_reports(c: Candidate, meter: Meter) -> list[SlotReport]:
    return [
        _slot_report(decision, usage, meter.slots[(decision.slot.id, usage)])
        for decision in c.plan
        for usage in Usage
        if (decision.slot.id, usage) in meter.slots
    ]


def _slot_report(decision: Decision, usage: Usage, stats: RepresentationStats) -> SlotReport:
    role = decision.slot.role or QuantizerRole()
    m, spread, form = stats.error, stats.scales, getattr(decision, usage.value)
    return SlotReport(
        slot=decision.slot.id,
        module=decision.slot.module,
        group=decision.slot.group,
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
        underflows=_percent(stats.nonzero - stats.nonzero_codes, stats.coded),
        overflows=_percent(stats.saturated, stats.bounded),
        scale_inv_min=spread.low if spread.count else None,
        scale_inv_max=spread.high if spread.count else None,
        scale_inv_std=spread.std,
        dynamic_range=stats.dynamic_range,
    )


def _percent(count: int, total: int) -> float | None:
    return 100.0 * count / total if total else None


def _norm_ratio(m: ErrorMoments) -> float | None:
    return math.sqrt(m.test_sq / m.reference_sq) if m.reference_sq else None


def _idle_experts(c: Candidate, layers: tuple[Layer, ...]) -> dict[str, list[int]]:
    found = {}
    for layer in layers:
        idle = [i for i in range(layer.copies) if not c.rows.get((layer, i))]
        if layer.copies > 1 and 0 < len(idle) < layer.copies:
            found[layer.name] = idle
    return found
