"""Factories of older releases under their old names; they take string roles and roles."""

from __future__ import annotations

from collections.abc import Callable

from qrole.factories.reference import current_scaling_ref_factory, nvfp4_ref_rht_2d_factory
from qrole.quantizers.base import Quantizer
from qrole.roles import QuantizerRole

__all__ = ["current_scaling_ref_quantizer_factory", "nvfp4_ref_rht_2d_quantizer_factory"]

_QUANTIZED = ("input", "weight", "grad_output")


def nvfp4_ref_rht_2d_quantizer_factory(role: str | QuantizerRole | None) -> Quantizer | None:
    """Reference of NVFP4; None for the string roles of outputs, which meant no quantization."""
    return _answer(nvfp4_ref_rht_2d_factory, role)


def current_scaling_ref_quantizer_factory(role: str | QuantizerRole | None) -> Quantizer | None:
    """Reference of FP8 current scaling; None as above."""
    return _answer(current_scaling_ref_factory, role)


def _answer(
    factory: Callable[[QuantizerRole | None], Quantizer], role: str | QuantizerRole | None
) -> Quantizer | None:
    if not isinstance(role, str):
        return factory(role)
    tensor_type = role.removeprefix("linear_")
    return factory(QuantizerRole("linear", tensor_type)) if tensor_type in _QUANTIZED else None
