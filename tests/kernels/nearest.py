"""An element cast straight from the table of values, independent of the one under test."""

import torch
from torch import Tensor

from qrole_kernels import formats


def nearest(x: Tensor, form: formats.ElementFormat) -> Tensor:
    """Cast by search over the values of the format: nearest, ties to the even code."""
    values = torch.tensor([form.value(code) for code in range(form.max_code + 1)]).double()
    a = x.double().abs().clamp(max=form.max)
    below = torch.searchsorted(values, a, right=True).clamp(max=len(values) - 1) - 1
    down, up = a - values[below], values[below + 1] - a
    code = below + ((up < down) | ((up == down) & (below % 2 == 1)))
    code = code | (x.signbit() << (form.bits - 1))
    return torch.where(x.isnan(), form.nan_cast, code).to(torch.uint8)
