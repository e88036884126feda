"""Operations without quantizer slots that work element by element or move elements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from qrole.modules.keywords import BiasKeywords, check_keywords
from qrole.modules.ops.operation import PlainOperation
from qrole.modules.parameters import empty_parameter

__all__ = [
    "AddExtraInput",
    "Bias",
    "ConstantScale",
    "Dropout",
    "Identity",
    "MakeExtraOutput",
    "Reshape",
]


class Bias(PlainOperation):
    """Adds a learned bias.

    Args:
        size: Of the last dimension.
        device: Of the bias; CUDA, or the default device on a machine without it.
        dtype: Of the bias; torch's default where None.
        keywords: TransformerEngine's further keywords, of no effect here: `keywords.py`.
    """

    def __init__(
        self,
        size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **keywords: Unpack[BiasKeywords],
    ) -> None:
        check_keywords("ops.Bias", BiasKeywords, keywords)
        super().__init__()
        self.bias = empty_parameter(size, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the bias to zero."""
        nn.init.zeros_(self.bias)

    @override
    def compute(self, x: Tensor, *extra: Tensor) -> Tensor:
        return x + self.bias.to(x.dtype)


class Identity(PlainOperation):
    """Gives its input."""

    @override
    def compute(self, x: Tensor, *extra: Tensor) -> Tensor:
        return x


class ConstantScale(PlainOperation):
    """Multiplies by a number."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    @override
    def compute(self, x: Tensor, *extra: Tensor) -> Tensor:
        return x * self.scale


class Dropout(PlainOperation):
    """Drops elements in training with probability `p`."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.dropout_probability = p

    @override
    def compute(self, x: Tensor, *extra: Tensor) -> Tensor:
        return F.dropout(x, self.dropout_probability, training=self.training)


class Reshape(PlainOperation):
    """Gives the input another shape of equally many elements; one size may be -1."""

    def __init__(self, shape: Iterable[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    @override
    def compute(self, x: Tensor, *extra: Tensor) -> Tensor:
        return x.reshape(self.shape)


class AddExtraInput(PlainOperation):
    """Adds a second input.

    Args:
        in_place: Accepted; the sum is a new tensor in any case.
    """

    num_extra_inputs = 1

    def __init__(self, *, in_place: bool = False) -> None:
        super().__init__()

    @override
    def compute(self, x: Tensor, *extra: Tensor) -> Tensor:
        return x + extra[0]


class MakeExtraOutput(PlainOperation):
    """Gives its input a second time.

    Args:
        in_place: Accepted; gradients are added up in any case.
    """

    num_extra_outputs: ClassVar[int] = 1

    def __init__(self, *, in_place: bool = False) -> None:
        super().__init__()

    @override
    def compute(self, x: Tensor, *extra: Tensor) -> tuple[Tensor, Tensor]:
        return x, x
