"""FP8 with one fp32 scale per tensor or per row, and the state of delayed scaling."""

import torch
from torch import Tensor

from qrole_kernels.formats import fp8_format
from qrole_kernels.reference.arguments import as_float32, check_choice, check_shape
from qrole_kernels.reference.blocks import amax as tensor_amax
from qrole_kernels.reference.blocks import amax_rows
from qrole_kernels.reference.elements import decode_fp8, encode_fp8

FLOAT32_MAX = torch.finfo(torch.float32).max


def fp8_scale(
    amax: Tensor, element: str, power_of_two: bool, epsilon: float, value_for_inf: float
) -> Tensor:
    """Scale that maps `amax` to the largest value of the element format, elementwise in fp32.

    Args:
        amax: fp32, any shape.
        element: "e4m3" or "e5m2".
        power_of_two: Round the scale down to a power of two.
        epsilon: Floor of `amax`.
        value_for_inf: Scale where the quotient overflows.

    Returns:
        fp32 of the same shape; 1 where amax is 0, inf or NaN.
    """
    # Only a tensor divided by a tensor is one IEEE division in eager torch.
    floor = torch.full_like(amax, epsilon)
    amax = torch.where(amax < floor, floor, amax)
    scale = torch.full_like(amax, fp8_format(element).max) / amax
    unusable = (amax == 0) | ~amax.isfinite()
    scale = scale.masked_fill(scale.isinf(), value_for_inf)
    if power_of_two:
        scale = (scale.view(torch.int32) & -0x800000).view(torch.float32)
    return scale.masked_fill(unusable, 1.0)


def quantize_fp8(x: Tensor, scale: Tensor, element: str) -> Tensor:
    """Cast (M, K) with a given fp32 scale (a scalar): codes uint8 (M, K) of `x * scale`."""
    return encode_fp8(as_float32(x) * scale.reshape(()), element)


def quantize_fp8_current(
    x: Tensor, element: str, power_of_two: bool = False, epsilon: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Quantize (M, K) with the scale of its own amax.

    Returns:
        Codes uint8 (M, K), and the fp32 scalars scale, 1/scale and amax (before the epsilon floor).
    """
    amax = tensor_amax(x)
    scale = fp8_scale(amax, element, power_of_two, epsilon, FLOAT32_MAX)
    return quantize_fp8(x, scale, element), scale, 1.0 / scale, amax


def quantize_fp8_rows(x: Tensor, element: str) -> tuple[Tensor, Tensor]:
    """Quantize each row of (M, K) with the scale of its own amax.

    Returns:
        Codes uint8 (M, K), 1/scale fp32 (M, 1).
    """
    scale = fp8_scale(amax_rows(x), element, False, 0.0, FLOAT32_MAX)[:, None]
    return encode_fp8(as_float32(x) * scale, element), 1.0 / scale


def dequantize_fp8(data: Tensor, scale_inv: Tensor, element: str, dtype: torch.dtype) -> Tensor:
    """Decode codes (M, K) with one scale: fp32 product, one rounding to `dtype`."""
    return (decode_fp8(data, element) * scale_inv.reshape(())).to(dtype)


def dequantize_fp8_rows(
    data: Tensor, scale_inv: Tensor, element: str, dtype: torch.dtype
) -> Tensor:
    """Decode codes (M, K) with one scale per row, fp32 (M, 1)."""
    check_shape("scale_inv", scale_inv, (data.shape[0], 1))
    return (decode_fp8(data, element) * scale_inv).to(dtype)


def update_delayed_scaling(
    history: Tensor,
    scale: Tensor,
    element: str,
    algorithm: str = "max",
    margin: int = 0,
    rule: str = "bulk",
) -> tuple[Tensor, Tensor]:
    """Advance the state of delayed scaling by one step.

    Args:
        history: fp32 (L, ...), amax of the steps: the one that just ended in slot 0, the one before
            it in slot L-1.
        scale: fp32 (...), the scale in use.
        element: "e4m3" or "e5m2".
        algorithm: "max" of the window or "most_recent".
        margin: The scale is 2^margin smaller than what amax would allow.
        rule: "bulk", as in training: a tensor whose amax is 0 was not used and keeps its state.
            "single": the history always rolls.

    Returns:
        The new history and scale, as new tensors.
    """
    check_choice("algorithm", algorithm, ("max", "most_recent"))
    check_choice("rule", rule, ("bulk", "single"))
    last = history[0]
    rolled = history.roll(-1, 0)
    window = rolled.nan_to_num(nan=0.0, posinf=torch.inf).amax(0)
    amax = window if algorithm == "max" else last
    target = torch.full_like(amax, fp8_format(element).max * 2.0**-margin)
    quotient = (target / amax).clamp(max=FLOAT32_MAX)
    new_scale = torch.where(amax.isfinite() & (amax > 0), quotient, scale)
    new_history = rolled.clone()
    new_history[0] = 0.0
    if rule == "single":
        return new_history, new_scale
    unused = last == 0
    return torch.where(unused, history, new_history), torch.where(unused, scale, new_scale)
