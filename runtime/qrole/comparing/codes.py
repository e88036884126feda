"""What stored codes and scales say: zeros, saturation, the scales' values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

if TYPE_CHECKING:
    from qrole.quantizers.base import OperandFormat
    from qrole.quantizers.tensor import Representation

__all__ = ["nonzero_codes", "saturated", "scale_values"]

_LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0}
_E2M1_MAX = 6.0


def nonzero_codes(codes: torch.Tensor, element: str) -> int:
    """Number of codes that are neither +0 nor -0; two to a byte for E2M1."""
    if element == "e2m1":
        low, high = codes & 0x07, codes & 0x70
        return int(torch.count_nonzero(low)) + int(torch.count_nonzero(high))
    return int(torch.count_nonzero(codes & 0x7F))


def scale_values(data: Representation, form: OperandFormat) -> torch.Tensor | None:
    """What each code is multiplied by, fp32, in the layout of the scales; None without scales."""
    if data.scale_inv is None:
        return None
    if form.scale == "e8m0":
        return torch.exp2(data.scale_inv.float() - 127.0)
    if form.scale == "e4m3":
        assert data.amax is not None, "NVFP4 has an amax"
        decoded = data.scale_inv.view(torch.float8_e4m3fn).float()
        factor = data.amax.float() / (_E2M1_MAX * form.e4m3_max)
        return decoded * (factor.unsqueeze(-1) if factor.dim() else factor)
    return data.scale_inv.float()


def saturated(x_MK: torch.Tensor, data: Representation, form: OperandFormat) -> int | None:
    """Number of elements whose magnitude is beyond the largest code times their scale.

    Scales that are made from the data's own amax and rounded up, or not at all, leave none beyond:
    those of FP8 (delayed scaling excepted), MXFP8, and MXFP4 by the rule `rceil`.

    Returns:
        None for Hadamard-transformed data, where elements do not keep their places.
    """
    if form.rht:
        return None
    rounds_down = form.family == "nvfp4" or (form.family == "mxfp4" and form.scale_rule != "rceil")
    scales = scale_values(data, form) if rounds_down or form.delayed else None
    if scales is None:
        return 0
    limits = _LARGEST[form.element] * scales
    if form.block is None:
        return int(torch.count_nonzero(x_MK.abs() > limits))
    transposed = form.block[0] > form.block[1] or data.data.shape[0] != x_MK.shape[0]
    return _beyond_blocks(x_MK.t() if transposed else x_MK, limits, max(form.block))


def _beyond_blocks(x_RC: torch.Tensor, limits: torch.Tensor, block: int) -> int:
    """Elements above the limit of their block of `block` columns; limits (R, ceil(C / block))."""
    padded = pad(x_RC, (0, -x_RC.shape[1] % block))
    blocks = padded.reshape(x_RC.shape[0], -1, block).abs()
    return int(torch.count_nonzero(blocks > limits.unsqueeze(-1)))
