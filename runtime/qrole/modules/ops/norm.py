"""LayerNorm, RMSNorm and L2Normalization as operations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn
from typing_extensions import override

from qrole.modules.keywords import NormKeywords, check_keywords
from qrole.modules.normalization import Normalization, normalize
from qrole.modules.ops.operation import PlainOperation
from qrole.modules.parameters import empty_parameter

__all__ = ["L2Normalization", "LayerNorm", "RMSNorm"]


class _Norm(PlainOperation):
    kind: ClassVar[Normalization]

    def __init__(
        self,
        normalized_shape: Iterable[int] | int,
        *,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        **keywords: Unpack[NormKeywords],
    ) -> None:
        check_keywords(self.kind, NormKeywords, keywords)
        super().__init__()
        self.eps = eps
        self.zero_centered_gamma = zero_centered_gamma
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        shape = tuple(shape)
        self.weight = empty_parameter(*shape, device=device, dtype=dtype)
        self.bias: nn.Parameter | None
        made = None
        if self.kind == "LayerNorm":
            made = empty_parameter(*shape, device=device, dtype=dtype)
        self.register_parameter("bias", made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets gamma to 1 (0 where it is zero-centred) and beta to 0."""
        nn.init.constant_(self.weight, 0.0 if self.zero_centered_gamma else 1.0)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @override
    def compute(self, x: Tensor, *extra: Tensor) -> Tensor:
        return normalize(
            x,
            self.weight,
            self.bias,
            self.eps,
            kind=self.kind,
            zero_centered_gamma=self.zero_centered_gamma,
        )


class LayerNorm(_Norm):
    """Layer normalization over the last dimensions.

    Args:
        normalized_shape: Those dimensions.
        eps: Added to the variance.
        device: Of the parameters; CUDA, or the default device on a machine without it.
        dtype: Of the parameters; torch's default where None.
        zero_centered_gamma: Gamma is stored as its difference to 1.
        keywords: TransformerEngine's further keywords, of no effect here: `keywords.py`.
    """

    kind = "LayerNorm"


class RMSNorm(_Norm):
    """Normalization by the root of the mean square; arguments as for `LayerNorm`."""

    kind = "RMSNorm"


class L2Normalization(PlainOperation):
    """Scales the last dimension to length 1.

    Args:
        eps: Added to the sum of squares.
        seq_length: Accepted; sizes for compiling kernels in advance.
        micro_batch_size: Likewise.
    """

    def __init__(
        self,
        *,
        eps: float = 1e-6,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps

    @override
    def compute(self, x: Tensor, *extra: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + self.eps)).to(x.dtype)
