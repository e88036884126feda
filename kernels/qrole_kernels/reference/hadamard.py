"""The random Hadamard transform of NVFP4's wgrad operands."""

import torch
from torch import Tensor

from qrole_kernels.errors import ArgumentError

SIGN_MASK = 0xD7E8
"""Bit i set: element i of a group of 16 changes sign before the transform."""
GROUP = 16


def check_transformable(x: Tensor) -> None:
    """Check the input of the transform.

    Raises:
        ArgumentError: Not bf16, no matrix, or K no multiple of 16.
    """
    if x.dtype != torch.bfloat16 or x.dim() != 2 or x.shape[1] % GROUP:
        raise ArgumentError(
            f"a tensor of {x.dtype} and shape {tuple(x.shape)}",
            "a bfloat16 matrix (M, K) with K a multiple of 16",
            "Convert to bfloat16; choose a token count that is a multiple of 16.",
        )


def hadamard16(x: Tensor, sign_mask: int = SIGN_MASK) -> Tensor:
    """Transform groups of 16 along the last dimension: v @ (diag(sign) @ H16 / 4), rounded to bf16.

    Summed in fp32 by butterflies of stride 1, 2, 4, 8, an order that every device can keep.

    Args:
        x: bf16 (M, K), K a multiple of 16.
        sign_mask: 16 bits, set where the sign changes.

    Raises:
        ArgumentError: Wrong dtype or K.
    """
    check_transformable(x)
    signs = torch.tensor([-0.25 if sign_mask >> i & 1 else 0.25 for i in range(GROUP)])
    v = x.float().reshape(-1, GROUP) * signs.to(x.device)
    for stride in (1, 2, 4, 8):
        pairs = v.view(-1, GROUP // (2 * stride), 2, stride)
        a, b = pairs.unbind(2)
        v = torch.stack((a + b, a - b), dim=2).view(-1, GROUP)
    y = v.to(torch.bfloat16).view(x.shape)
    return y.masked_fill(y.isnan(), torch.nan)
