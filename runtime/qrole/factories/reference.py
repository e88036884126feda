"""Factories that return TransformerEngine's Python reference quantizers."""

from __future__ import annotations

from qrole.dtypes import DType
from qrole.factories.builtin import linear_tensor_type
from qrole.quantizers.base import Quantizer
from qrole.quantizers.reference import CurrentScalingQuantizerRef, NVFP4QuantizerRef
from qrole.roles import QuantizerRole

__all__ = ["current_scaling_ref_factory", "nvfp4_ref_rht_2d_factory"]


def nvfp4_ref_rht_2d_factory(role: QuantizerRole | None) -> Quantizer:
    """Reference of NVFP4: 2D blocks for weights, RHT for the rest, no stochastic rounding."""
    if linear_tensor_type(role) == "weight":
        return NVFP4QuantizerRef(DType.kFloat4E2M1, quant_tile_shape=(16, 16))
    return NVFP4QuantizerRef(DType.kFloat4E2M1, with_rht=True)


def current_scaling_ref_factory(role: QuantizerRole | None) -> Quantizer:
    """Reference of FP8 current scaling: E5M2 for grad_output, E4M3 for the rest."""
    import torch

    gradient = role is not None and role.tensor_type == "grad_output"
    return CurrentScalingQuantizerRef(torch.float8_e5m2 if gradient else torch.float8_e4m3fn)
