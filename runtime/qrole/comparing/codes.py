"""What stored codes and scales say: zeros, saturation, the scales' values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from qrole.comparing.difference import is_compiled, pieces

if TYPE_CHECKING:
    from qrole.quantizers.base import OperandFormat
    from qrole.quantizers.tensor import Representation

__all__ = ["nonzero_codes", "saturated", "scale_values"]

_LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0}
_E2M1_MAX = 6.0


def nonzero_codes(codes: torch.Tensor, element: str) -> int:
    """Number of codes that are neither +0 nor -0; two to a byte for E2M1."""
    masks = (0x07, 0x70) if element == "e2m1" else (0x7F,)
    flat = codes.contiguous().view(-1)
    return sum(_with_bits(flat, mask) for mask in masks)


def _with_bits(codes: torch.Tensor, mask: int) -> int:
    """Number of bytes, of a flat tensor, in which any bit of the mask is set."""
    if not is_compiled(codes):
        return int(torch.count_nonzero(codes & mask))
    from qrole_kernels.cpu.counts import STEP, host_masked

    whole = codes.numel() - codes.numel() % STEP
    rest = int(torch.count_nonzero(codes[whole:] & mask))
    return rest + host_masked(codes.data_ptr(), whole, mask)


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


def saturated(
    x_MK: torch.Tensor, data: Representation, form: OperandFormat, scales: torch.Tensor | None
) -> int | None:
    """Number of elements whose magnitude is beyond the largest code times their scale.

    `scales` are the `scale_values`.

    Scales that are made from the data's own amax and rounded up, or not at all, leave none beyond:
    those of FP8 (delayed scaling excepted), MXFP8, and MXFP4 by the rule `rceil`.

    Returns:
        None for Hadamard-transformed data, where elements do not keep their places.
    """
    if form.rht:
        return None
    rounds_down = form.family == "nvfp4" or (form.family == "mxfp4" and form.scale_rule != "rceil")
    if scales is None or not (rounds_down or form.delayed):
        return 0
    limits = _LARGEST[form.element] * scales
    if form.block is None:
        flat = x_MK.contiguous().view(-1)
        return sum(int((p.float().abs() > limits).sum()) for p in pieces(flat))
    transposed = form.block[0] > form.block[1] or data.data.shape[0] != x_MK.shape[0]
    return _beyond_blocks(x_MK.t() if transposed else x_MK, limits, max(form.block))


def _beyond_blocks(x_RC: torch.Tensor, limits: torch.Tensor, block: int) -> int:
    """Elements above the limit of their block of `block` columns; limits (R, ceil(C / block))."""
    missing = -x_RC.shape[1] % block
    padded = pad(x_RC, (0, missing)) if missing else x_RC
    x, limits = padded.float().contiguous(), limits.contiguous()
    if is_compiled(x):
        from qrole_kernels.cpu.counts import host_beyond

        return host_beyond(x.data_ptr(), limits.data_ptr(), limits.numel(), block)
    blocks = x.view(*limits.shape, block)
    return int((blocks.abs() > limits.unsqueeze(-1)).sum())
