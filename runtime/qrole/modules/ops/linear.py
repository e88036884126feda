"""ops.Linear: BasicLinear and Bias under one name."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from qrole.modules.keywords import LinearOpKeywords, check_keywords
from qrole.modules.ops.basic_linear import BasicLinear
from qrole.modules.ops.elementwise import Bias
from qrole.modules.ops.operation import BasicOperation, FusedOperation

__all__ = ["Linear"]


class Linear(FusedOperation):
    """`y = x W^T + b`; the slots are those of its `BasicLinear`.

    Parameters are stored under `basic_ops`, as in TransformerEngine's checkpoints.

    Args:
        in_features: Size of each input row.
        out_features: Size of each output row.
        bias: Learn a bias.
        device: Of the parameters; CUDA, or the default device on a machine without it.
        dtype: Of the parameters; torch's default where None.
        keywords: TransformerEngine's further keywords, of no effect here: `keywords.py`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **keywords: Unpack[LinearOpKeywords],
    ) -> None:
        check_keywords("ops.Linear", LinearOpKeywords, keywords)
        self.in_features = in_features
        self.out_features = out_features
        linear = BasicLinear(in_features, out_features, device=device, dtype=dtype)
        ops: list[BasicOperation] = [linear]
        if bias:
            ops.append(Bias(out_features, device=device, dtype=dtype))
        super().__init__(ops)

    @property
    def weight(self) -> Tensor:
        """(out_features, in_features)."""
        return self.get_parameter("basic_ops.0.weight")

    @property
    def bias(self) -> Tensor | None:
        """(out_features,), or None."""
        return self.get_parameter("basic_ops.1.bias") if len(self.basic_ops) > 1 else None
