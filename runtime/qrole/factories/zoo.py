"""Mixed factories: formats that differ between passes, directions, or kinds of layers.

Where the backward pass reads another format than the forward pass, inputs and weights take
`rowwise_dequantized` as the source, so that gradients belong to what the forward pass computed
with; gradients themselves never do.
"""

from __future__ import annotations

from qrole.dtypes import DType
from qrole.factories.builtin import linear_tensor_type, mxfp8_factory, nvfp4_factory
from qrole.quantizers.base import Quantizer
from qrole.quantizers.fp8 import Float8CurrentScalingQuantizer
from qrole.quantizers.hybrid import HybridQuantizer
from qrole.quantizers.identity import IdentityQuantizer
from qrole.quantizers.mxfp8 import MXFP8Quantizer
from qrole.quantizers.nvfp4 import NVFP4Quantizer
from qrole.recipes import Format
from qrole.roles import DelayedScalingRequest, QuantizerRequest, QuantizerRole

__all__ = [
    "high_precision_fwd_mxfp8_bwd_factory",
    "mxfp8_fwd_high_precision_bwd_factory",
    "mxfp8_fwd_nvfp4_bwd_factory",
    "nvfp4_1d_weight_factory",
    "nvfp4_linear_fp8_dpa_factory",
    "nvfp4_linear_mxfp8_dpa_factory",
    "nvfp4_linear_mxfp8_grouped_linear_factory",
    "nvfp4_row_scaled_fwd_high_precision_bwd_factory",
    "nvfp4_row_scaled_fwd_mxfp8_bwd_factory",
]


def _mxfp8() -> MXFP8Quantizer:
    return MXFP8Quantizer(DType.kFloat8E4M3)


def _nvfp4_rht(*, stochastic_rounding: bool = False) -> NVFP4Quantizer:
    return NVFP4Quantizer(
        with_rht=True, with_post_rht_amax=True, stochastic_rounding=stochastic_rounding
    )


def _hybrid(rowwise: Quantizer, columnwise: Quantizer, source: str) -> HybridQuantizer:
    return HybridQuantizer(
        rowwise_quantizer=rowwise, columnwise_quantizer=columnwise, columnwise_source=source
    )


def high_precision_fwd_mxfp8_bwd_factory(role: QuantizerRole | None) -> Quantizer:
    """High precision forward, MXFP8 backward."""
    if linear_tensor_type(role) == "grad_output":
        return _mxfp8()
    return _hybrid(IdentityQuantizer(), _mxfp8(), "original")


def mxfp8_fwd_nvfp4_bwd_factory(role: QuantizerRole | None) -> Quantizer:
    """MXFP8 forward, NVFP4 backward with RHT in wgrad and stochastically rounded gradients."""
    tensor_type = linear_tensor_type(role)
    if tensor_type == "input":
        return _hybrid(_mxfp8(), _nvfp4_rht(), "original")
    if tensor_type == "weight":
        return _hybrid(_mxfp8(), NVFP4Quantizer(), "rowwise_dequantized")
    if tensor_type == "grad_output":
        return _nvfp4_rht(stochastic_rounding=True)
    return _mxfp8()


def nvfp4_1d_weight_factory(role: QuantizerRole | None) -> Quantizer:
    """NVFP4 with 1D weight scales; dgrad reads a quantization of the forward weight."""
    tensor_type = linear_tensor_type(role)
    if tensor_type == "weight":
        return _hybrid(NVFP4Quantizer(), NVFP4Quantizer(), "rowwise_dequantized")
    return _nvfp4_rht(stochastic_rounding=tensor_type == "grad_output")


def mxfp8_fwd_high_precision_bwd_factory(role: QuantizerRole | None) -> Quantizer:
    """MXFP8 forward, high precision backward on the dequantized forward operands."""
    tensor_type = linear_tensor_type(role)
    if tensor_type in ("input", "weight"):
        return _hybrid(_mxfp8(), IdentityQuantizer(), "rowwise_dequantized")
    return IdentityQuantizer() if tensor_type == "grad_output" else _mxfp8()


def nvfp4_row_scaled_fwd_mxfp8_bwd_factory(role: QuantizerRole | None) -> Quantizer:
    """Experts: row-scaled NVFP4 forward, MXFP8 backward; MXFP8 for everything else."""
    if role is None or role.module_type != "grouped_linear":
        return _mxfp8()
    if role.tensor_type == "input":
        return _hybrid(NVFP4Quantizer(row_scaled_nvfp4=True), _mxfp8(), "rowwise_dequantized")
    if role.tensor_type == "weight":
        return _hybrid(NVFP4Quantizer(), _mxfp8(), "rowwise_dequantized")
    return _mxfp8()


def nvfp4_row_scaled_fwd_high_precision_bwd_factory(role: QuantizerRole | None) -> Quantizer:
    """Row-scaled NVFP4 forward, high precision backward on the dequantized forward operands."""
    tensor_type = linear_tensor_type(role)
    if tensor_type == "grad_output":
        return IdentityQuantizer()
    if tensor_type not in ("input", "weight"):
        return NVFP4Quantizer()
    forward = NVFP4Quantizer(row_scaled_nvfp4=tensor_type == "input")
    return _hybrid(forward, IdentityQuantizer(), "rowwise_dequantized")


def _boundary_hint(role: QuantizerRole | None) -> str:
    """`dpa_output` or `dpa_grad_input` for the role that attention gives its boundary slots."""
    if role is None or role.module_type:
        return ""
    return next((hint for hint in ("dpa_output", "dpa_grad_input") if hint in role.name), "")


def nvfp4_linear_fp8_dpa_factory(role: QuantizerRole | None) -> Quantizer | QuantizerRequest:
    """NVFP4 linear layers; FP8 attention, current scaling with delayed scaling for S and dP.

    Needs `fp8_dpa=True`, and not `fp8_mha`: then attention's output is labelled as the input of
    the projection and would get NVFP4, which attention refuses.
    """
    attention = role is not None and role.module_type == "dpa"
    tensor_type = role.tensor_type if attention and role is not None else ""
    hint = _boundary_hint(role)
    if tensor_type in ("s", "dp"):
        return DelayedScalingRequest(
            fp8_format=Format.HYBRID, amax_history_len=1, amax_compute_algo="most_recent"
        )
    if tensor_type in ("do", "dqkv") or hint == "dpa_grad_input":
        return Float8CurrentScalingQuantizer(DType.kFloat8E5M2, device="cuda")
    if attention or hint == "dpa_output":
        return Float8CurrentScalingQuantizer(DType.kFloat8E4M3, device="cuda")
    return nvfp4_factory(role)


def nvfp4_linear_mxfp8_dpa_factory(role: QuantizerRole | None) -> Quantizer:
    """NVFP4 linear layers and MXFP8 attention."""
    attention = role is not None and role.module_type == "dpa"
    if attention or _boundary_hint(role):
        return mxfp8_factory(role)
    return nvfp4_factory(role)


def nvfp4_linear_mxfp8_grouped_linear_factory(role: QuantizerRole | None) -> Quantizer:
    """MXFP8 experts, NVFP4 for everything else."""
    if role is not None and role.module_type == "grouped_linear":
        return mxfp8_factory(role)
    return nvfp4_factory(role)
