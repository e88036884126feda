"""QR3xx: elements and rounding that a tensor should not have."""

from __future__ import annotations

from collections.abc import Iterator

from qrole.auditing.registry import Hit, Severity, check
from qrole.auditing.subject import PlanSubject, source_of
from qrole.plans import Decision


@check("QR310", Severity.WARNING)
def wide_element_in_blocks(subject: PlanSubject) -> Iterator[Hit]:
    """E5M2 elements under block scales.

    E5M2 buys range with a bit of precision, which one scale per tensor needs for gradients. With a
    scale per block (MXFP8, FP8 blocks) the range is in the scales, and E5M2 costs half of the
    precision for nothing: TransformerEngine's MXFP8 and block recipes use E4M3 for gradients too.
    A factory that was written for per-tensor FP8 and moved to MXFP8 keeps the old choice silently.

    Use E4M3.
    """
    for decision in subject.usable:
        fmt = decision.rowwise
        if fmt and fmt.family in ("mxfp8", "fp8_block") and fmt.element == "e5m2":
            yield _operand_hit(decision, f"is {fmt.label}", "use E4M3; the block scales have range")


@check("QR311", Severity.WARNING)
def coarse_forward(subject: PlanSubject) -> Iterator[Hit]:
    """Inputs or weights are E5M2 with one scale per tensor.

    E5M2 has two bits of mantissa. It is meant for gradients; forward tensors lose half of the
    precision that E4M3 has, and serving engines read E4M3 weights only.

    Use E4M3 for inputs and weights, E5M2 for gradients.
    """
    for decision in subject.usable:
        fmt = decision.rowwise
        forward = decision.slot.operand in ("input", "weight")
        if forward and fmt and fmt.family == "fp8_tensor" and fmt.element == "e5m2":
            yield _operand_hit(decision, f"is {fmt.label}", "use E4M3 for inputs and weights")


@check("QR312", Severity.WARNING)
def biased_gradient(subject: PlanSubject) -> Iterator[Hit]:
    """A 4-bit gradient is rounded to nearest.

    Rounding small gradient values to nearest in 4 bits is biased: values below a quarter of the
    block's smallest step vanish in every step. The NVFP4 training recipe rounds gradients
    stochastically.

    Set `stochastic_rounding=True` for `grad_output`.
    """
    for decision in subject.usable:
        fmt = decision.rowwise
        coarse = fmt is not None and fmt.element == "e2m1" and not fmt.stochastic_rounding
        if decision.slot.operand == "grad_output" and fmt and coarse:
            yield _operand_hit(
                decision, f"is {fmt.label}, rounded to nearest", "set stochastic_rounding=True"
            )


@check("QR313", Severity.WARNING)
def random_forward(subject: PlanSubject) -> Iterator[Hit]:
    """An input or a weight is rounded stochastically.

    Stochastic rounding keeps the mean of many roundings and doubles the error of each one. Forward
    tensors are read once; the recipes round them to nearest. Two ranks that hold the same weight
    also get different values.

    Set `stochastic_rounding` for gradients only.
    """
    for decision in subject.usable:
        fmt = decision.rowwise
        if decision.slot.operand in ("input", "weight") and fmt and fmt.stochastic_rounding:
            yield _operand_hit(
                decision, f"is {fmt.label}", "set stochastic_rounding for gradients only"
            )


def _operand_hit(decision: Decision, message: str, to_do: str) -> Hit:
    slot = decision.slot
    path = f"{slot.module}.{slot.group}" if slot.group else slot.module
    text = f"{slot.operand} {message}"
    return Hit(path or ".", text, to_do, slot.module, *source_of(decision))
