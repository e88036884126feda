"""One operand's quantizers across the experts of a grouped layer: they must suit one GEMM."""

from __future__ import annotations

from collections.abc import Sequence

from qrole.errors import ConfigError
from qrole.quantizers import HybridQuantizer, IdentityQuantizer, Quantizer

__all__ = ["check_experts"]


def check_experts(quantizers: Sequence[Quantizer], operand: str) -> None:
    """Checks that the grouped GEMM can treat all experts alike.

    Args:
        quantizers: Of one operand, one per expert.
        operand: Its name, for the message.

    Raises:
        ConfigError: They mix hybrid and plain quantizers, identity and quantized directions,
            families, options, or sources of the column-wise side.
    """
    reference = quantizers[0]
    for expert, quantizer in enumerate(quantizers[1:], start=1):
        reason = _difference(reference, quantizer)
        if reason:
            raise ConfigError(
                f"GroupedLinear {operand} quantizers {reason} across experts: expert 0 uses "
                f"{reference!r}, but expert {expert} uses {quantizer!r}",
                expected="quantizers of one class with equal options for all experts",
                hint="the roles of experts are equal; return equal quantizers for equal roles",
            )


def _difference(a: Quantizer, b: Quantizer) -> str:
    if isinstance(a, HybridQuantizer) != isinstance(b, HybridQuantizer):
        return "mix HybridQuantizer and non-hybrid quantizers"
    if _identity_sides(a) != _identity_sides(b):
        return "mix Identity-backed and quantized directions"
    if isinstance(a, HybridQuantizer) and isinstance(b, HybridQuantizer):
        if a.columnwise_source != b.columnwise_source:
            return "have mixed columnwise source policies"
        return _backend_difference(
            "rowwise", a.rowwise_quantizer, b.rowwise_quantizer
        ) or _backend_difference("columnwise", a.columnwise_quantizer, b.columnwise_quantizer)
    return _backend_difference("plain", a, b)


def _identity_sides(quantizer: Quantizer) -> tuple[bool, bool]:
    if isinstance(quantizer, HybridQuantizer):
        return (
            any(_identity_sides(quantizer.rowwise_quantizer)),
            any(_identity_sides(quantizer.columnwise_quantizer)),
        )
    identity = isinstance(quantizer, IdentityQuantizer)
    return identity, identity


def _backend_difference(direction: str, a: Quantizer, b: Quantizer) -> str:
    if type(a) is not type(b):
        return f"use incompatible {direction} backend families"
    if a != b:
        return f"use incompatible {direction} backend configurations"
    return ""
