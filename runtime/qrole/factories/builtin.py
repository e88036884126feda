"""Factories that answer as TransformerEngine's built-in recipes do.

They key on the role's tensor type alone, or on the two linear module types where that is said, and
they build a new quantizer for every slot.
"""

from __future__ import annotations

from qrole.dtypes import DType
from qrole.quantizers.base import Quantizer
from qrole.quantizers.fp8 import Float8CurrentScalingQuantizer
from qrole.quantizers.fp8_block import Float8BlockQuantizer
from qrole.quantizers.identity import IdentityQuantizer
from qrole.quantizers.mxfp8 import MXFP8Quantizer
from qrole.quantizers.nvfp4 import NVFP4Quantizer
from qrole.roles import DelayedScalingRequest, QuantizerRole

__all__ = [
    "current_scaling_factory",
    "delayed_scaling_factory",
    "float8_block_scaling_factory",
    "high_precision_factory",
    "is_linear",
    "linear_tensor_type",
    "mxfp8_factory",
    "nvfp4_factory",
]


def is_linear(role: QuantizerRole | None) -> bool:
    """Whether a role comes from a linear layer, grouped or not."""
    return role is not None and role.module_type in ("linear", "grouped_linear")


def linear_tensor_type(role: QuantizerRole | None) -> str:
    """Tensor type of a linear layer's role; `""` for any other role and for None."""
    return role.tensor_type if role is not None and is_linear(role) else ""


def high_precision_factory(role: QuantizerRole | None) -> Quantizer:
    """Nothing is quantized."""
    return IdentityQuantizer()


def delayed_scaling_factory(role: QuantizerRole | None) -> DelayedScalingRequest:
    """FP8 with scales from the amax history: E4M3 forward, E5M2 backward."""
    return DelayedScalingRequest()


def current_scaling_factory(role: QuantizerRole | None) -> Quantizer:
    """FP8 with the scale of each tensor's own amax: E5M2 for grad_output, E4M3 for the rest."""
    gradient = role is not None and role.tensor_type == "grad_output"
    element = DType.kFloat8E5M2 if gradient else DType.kFloat8E4M3
    return Float8CurrentScalingQuantizer(element, device="cuda")


def float8_block_scaling_factory(role: QuantizerRole | None) -> Quantizer:
    """FP8 E4M3 in blocks: 128x128 for weights of linear layers, 1x128 for the rest."""
    return Float8BlockQuantizer(
        DType.kFloat8E4M3,
        rowwise=True,
        columnwise=True,
        block_scaling_dim=2 if linear_tensor_type(role) == "weight" else 1,
    )


def mxfp8_factory(role: QuantizerRole | None) -> Quantizer:
    """MXFP8 E4M3 everywhere."""
    return MXFP8Quantizer(DType.kFloat8E4M3)


def nvfp4_factory(role: QuantizerRole | None) -> Quantizer:
    """NVFP4: 2D blocks for weights, RHT for the rest, RHT and stochastic rounding for gradients."""
    tensor_type = linear_tensor_type(role)
    if tensor_type == "weight":
        return NVFP4Quantizer(with_2d_quantization=True)
    return NVFP4Quantizer(
        with_rht=True, with_post_rht_amax=True, stochastic_rounding=tensor_type == "grad_output"
    )
