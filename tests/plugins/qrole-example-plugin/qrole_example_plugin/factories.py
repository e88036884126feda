"""A factory that mixes formats by module name and tensor type."""

from __future__ import annotations

from qrole import (
    DType,
    Float8CurrentScalingQuantizer,
    IdentityQuantizer,
    MXFP8Quantizer,
    Quantizer,
    QuantizerRole,
)

_HEADS = ("head", "lm_head", "pooler")


def mixed(role: QuantizerRole | None) -> Quantizer:
    """MXFP8 everywhere, FP8 E5M2 for gradients, heads in high precision."""
    if role is None or any(part in _HEADS for part in role.name.split(".")):
        return IdentityQuantizer()
    if role.tensor_type == "grad_output":
        return Float8CurrentScalingQuantizer(DType.kFloat8E5M2, device="cpu")
    return MXFP8Quantizer(DType.kFloat8E4M3)
