"""The parts of a stored layer that are one number, from the amaxes that they stand for."""

from __future__ import annotations

from qrole.checkpoint.layouts import Content
from qrole.checkpoint.scalars import fp8_scale, global_divisor, global_multiplier, reciprocal
from qrole.checkpoint.schemes import WeightFormat

__all__ = ["number"]


def number(content: Content, fmt: WeightFormat, weight_amax: float, input_amax: float) -> float:
    """The value of a part that is one number."""
    nvfp4 = fmt.encoding == "nvfp4"
    if content is Content.WEIGHT_DIVISOR:
        return global_divisor(weight_amax, fmt.e4m3_max)
    if content is Content.INPUT_DIVISOR:
        return global_divisor(input_amax)
    if content is Content.WEIGHT_MULTIPLIER:
        if nvfp4:
            return global_multiplier(weight_amax, fmt.e4m3_max)
        scale = fp8_scale(weight_amax, power_of_two=fmt.power_of_two, epsilon=fmt.epsilon)
        return reciprocal(scale)
    assert content is Content.INPUT_MULTIPLIER
    return global_multiplier(input_amax) if nvfp4 else reciprocal(fp8_scale(input_amax))
