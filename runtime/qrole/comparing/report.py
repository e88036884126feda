"""What a comparison found: plain values, and their JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from qrole.json_values import plain

__all__ = [
    "SCHEMA",
    "CandidateReport",
    "GemmReport",
    "LayerReport",
    "ModelReport",
    "ParameterReport",
    "Report",
    "SensitivityReport",
    "SlotReport",
    "TrainingReport",
    "layer_name",
]

SCHEMA = "qrole.compare/1"


@dataclass(frozen=True)
class SlotReport:
    """One representation of one slot; names follow TransformerEngine's debug tools.

    Attributes:
        slot: Slot id.
        module: Module path.
        group: Which of the module's layers.
        module_type: Of the role; `""` where there is none.
        tensor_type: Of the role.
        role_name: Of the role.
        operand: `input`, `weight`, `grad_output`.
        usage: `rowwise` or `columnwise`.
        format: The number format.
        numel: Elements seen, all batches and experts together.
        cur_amax: Largest magnitude of the last tensor.
        sqnr_db: Signal to quantization noise, dB; infinite where nothing was lost, None without
            signal.
        rel_err: Norm of the error over norm of the tensor.
        mse: Mean squared error.
        max_abs_err: Largest absolute error.
        underflows: Percentage of elements that became zero.
        overflows: Percentage of elements beyond what their scale holds; None for data that is
            Hadamard-transformed.
        scale_inv_min: Smallest nonzero scale (multiplier of the codes).
        scale_inv_max: Largest scale.
        scale_inv_std: Standard deviation of the scales.
        dynamic_range: log2(amax) - log2(smallest nonzero magnitude).
    """

    slot: str
    module: str
    group: str
    module_type: str
    tensor_type: str
    role_name: str
    operand: str
    usage: str
    format: str
    numel: int
    cur_amax: float
    sqnr_db: float | None
    rel_err: float | None
    mse: float | None
    max_abs_err: float
    underflows: float | None
    overflows: float | None
    scale_inv_min: float | None
    scale_inv_max: float | None
    scale_inv_std: float | None
    dynamic_range: float | None

    @property
    def layer(self) -> str:
        """Module path and group."""
        return layer_name(self.module, self.group)

    @property
    def role_names(self) -> tuple[str, str]:
        """What patterns of roles are matched with: `tensor_type`, `module_type/tensor_type`."""
        return self.tensor_type, f"{self.module_type}/{self.tensor_type}"


@dataclass(frozen=True)
class GemmReport:
    """One GEMM's result against the product of its unquantized operands.

    Attributes:
        module: Module path.
        group: Which of the module's layers.
        gemm: `fprop`, `dgrad` or `wgrad`.
        sqnr_db: dB; infinite where nothing was lost, None without signal.
        rel_err: Norm of the error over norm of the exact result.
        max_abs_err: Largest absolute error among the elements that were compared.
        coverage: Share of the results that was compared element by element; 1.0 is everything. Of
            long ones that is the 64 rows that deviate most; `sqnr_db` and `rel_err` come from them
            and, for the rest, from 64 random projections of result and exact product.
    """

    module: str
    group: str
    gemm: str
    sqnr_db: float | None
    rel_err: float | None
    max_abs_err: float
    coverage: float

    @property
    def layer(self) -> str:
        """Module path and group."""
        return layer_name(self.module, self.group)


@dataclass(frozen=True)
class LayerReport:
    """One layer's forward result against the reference run's, upstream errors included.

    Attributes:
        module: Module path.
        group: Which of the module's layers.
        formats: Row-wise formats of input and weight.
        sqnr_db: dB; infinite where both are equal, None where nothing could be compared.
        cosine: Cosine of the angle between both.
        rel_err: Norm of the difference over norm of the reference.
        rerouted: Calls that could not be compared, because routing sent other tokens.
    """

    module: str
    group: str
    formats: str
    sqnr_db: float | None
    cosine: float | None
    rel_err: float | None
    rerouted: int

    @property
    def layer(self) -> str:
        """Module path and group."""
        return layer_name(self.module, self.group)


@dataclass(frozen=True)
class ParameterReport:
    """One parameter's gradient against the reference run's.

    Attributes:
        name: Full name.
        grad_cosine: Cosine of the angle between both.
        grad_rel_err: Norm of the difference over norm of the reference.
        grad_norm_ratio: Norm over norm of the reference.
    """

    name: str
    grad_cosine: float | None
    grad_rel_err: float | None
    grad_norm_ratio: float | None


@dataclass(frozen=True)
class ModelReport:
    """The model as a whole.

    Attributes:
        output: Which output was compared.
        sqnr_db: Of the output, dB; infinite where both are equal.
        cosine: Cosine of the angle between both outputs.
        rel_err: Norm of the difference over norm of the reference.
        kl: Mean over positions of KL(reference || candidate), nats; None where no logits.
        top1_agreement: Share of positions with the same best class; None where no logits.
        loss_reference: Mean loss of the reference.
        loss: Mean loss of the candidate.
        loss_diff: Candidate minus reference.
        grad_cosine: Of all parameter gradients as one vector; None without a backward pass.
        grad_rel_err: Likewise.
        first_nonfinite: Where NaN or infinity first appeared; `""` if nowhere.
    """

    output: str
    sqnr_db: float | None
    cosine: float | None
    rel_err: float | None
    kl: float | None
    top1_agreement: float | None
    loss_reference: float
    loss: float
    loss_diff: float
    grad_cosine: float | None
    grad_rel_err: float | None
    first_nonfinite: str


@dataclass(frozen=True)
class CandidateReport:
    """One plan against the reference.

    Attributes:
        factory: How the factory was named.
        factory_sha256: Hash of its source file; `""` without one.
        formats: Number of slots per quantizer.
        model: The model as a whole.
        layers: Forward results, in the order of the model.
        slots: Quantized representations.
        gemms: Products of quantized operands.
        parameters: Gradients.
        idle_experts: For each layer with experts that saw no token: layer and their indices.
        not_computed: Layers that did not run quantized, and what read the weight instead, or why
            attention could not be computed.
    """

    factory: str
    factory_sha256: str
    formats: dict[str, int]
    model: ModelReport
    layers: tuple[LayerReport, ...]
    slots: tuple[SlotReport, ...]
    gemms: tuple[GemmReport, ...]
    parameters: tuple[ParameterReport, ...]
    idle_experts: dict[str, list[int]]
    not_computed: dict[str, list[str]]


@dataclass(frozen=True)
class SensitivityReport:
    """Model-level errors where one group alone is quantized.

    Attributes:
        group: A role, a layer or a GEMM.
        kl: As in `ModelReport`.
        rel_err: Of the output.
        grad_rel_err: Of all parameter gradients; None without a backward pass.
    """

    group: str
    kl: float | None
    rel_err: float | None
    grad_rel_err: float | None

    @property
    def order(self) -> tuple[float, float]:
        """Error of the output, then of the gradients: what groups are sorted by."""
        first = self.kl if self.kl is not None else self.rel_err
        return (first or 0.0, self.grad_rel_err or 0.0)


@dataclass(frozen=True)
class TrainingReport:
    """One training run; the first of a list is the reference.

    Attributes:
        name: Factory, or `high precision`.
        losses: Loss of each step, before its update.
        grad_norms: Norm of all gradients of each step.
        divergence_step: First step whose loss is not finite, or differs from the reference's by
            more than 5 % of the reference's mean loss; None where there is none.
        max_loss_diff: Largest difference to the reference's loss of the same step.
        final_loss_diff: Loss of the last step minus the reference's.
        grad_norm_ratio: Mean over steps of the gradient norm over the reference's.
    """

    name: str
    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    divergence_step: int | None
    max_loss_diff: float
    final_loss_diff: float
    grad_norm_ratio: float | None


@dataclass(frozen=True)
class Report:
    """A comparison.

    Attributes:
        model: How the model was named.
        dtype: Of its parameters.
        reference: Name of the reference factory.
        data: Source, batches, samples, tokens and hash of the inputs.
        seed: Of everything random.
        backward: Whether the backward pass was run.
        objective: What the backward pass started from.
        only: Globs that candidates were restricted to; empty for all modules.
        candidates: One per factory.
        sensitivity: For each candidate, groups quantized alone, worst first.
        training: Training runs, the reference first; empty where none was asked for.
        repeats: Seeds that were run; all but `noise` is of the first.
        noise: Standard deviation of errors over these seeds, by the names that `baseline.errors`
            gives them; only what is not zero.
    """

    model: str
    dtype: str
    reference: str
    data: dict[str, Any]
    seed: int
    backward: bool
    objective: str
    only: tuple[str, ...]
    candidates: tuple[CandidateReport, ...]
    sensitivity: dict[str, tuple[SensitivityReport, ...]] = field(default_factory=dict)
    training: tuple[TrainingReport, ...] = ()
    repeats: int = 1
    noise: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON values, schema `qrole.compare/1`; infinities and NaN become strings."""
        found = plain(asdict(self))
        assert isinstance(found, dict)
        return {"schema": SCHEMA, **found}

    def _repr_html_(self) -> str:
        from qrole.display import report_html

        return report_html(self)


def layer_name(module: str, group: str) -> str:
    """`module.group`, or whichever of the two is there."""
    return ".".join(part for part in (module, group) if part) or "."
