"""LayerNorm and RMSNorm as functions, as TransformerEngine defines them."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from qrole.errors import UnknownNameError

__all__ = ["NORMALIZATIONS", "Normalization", "check_normalization", "normalize"]

Normalization = Literal["LayerNorm", "RMSNorm"]
NORMALIZATIONS: tuple[Normalization, ...] = ("LayerNorm", "RMSNorm")


def check_normalization(name: str) -> Normalization:
    """The name as one of `NORMALIZATIONS`.

    Raises:
        UnknownNameError: It is none of them.
    """
    for known in NORMALIZATIONS:
        if name == known:
            return known
    raise UnknownNameError("normalization", name, NORMALIZATIONS)


def normalize(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    *,
    kind: Normalization,
    zero_centered_gamma: bool = False,
) -> Tensor:
    """Normalizes the last dimensions of `x`, those of `weight`.

    Args:
        x: Any shape that ends in `weight`'s.
        weight: Gamma.
        bias: Beta; None for RMSNorm.
        eps: Added to the variance or mean square.
        kind: LayerNorm or RMSNorm.
        zero_centered_gamma: Scale by `1 + weight`, in fp32, instead of by `weight`.

    Returns:
        The normalized tensor, of x's dtype and rounded once.
    """
    dtype, shape = x.dtype, weight.shape
    if zero_centered_gamma or weight.dtype != dtype:
        x, weight = x.float(), weight.float() + float(zero_centered_gamma)
        bias = None if bias is None else bias.float()
    if kind == "LayerNorm":
        return F.layer_norm(x, shape, weight, bias, eps).to(dtype)
    return F.rms_norm(x, shape, weight, eps).to(dtype)
