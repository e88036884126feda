"""Products of data made by quantizer classes that were written for TransformerEngine in Python.

There, such a quantizer multiplies by itself: its method `qgemm` gets the data and decode scales of
both operands, row-wise or transposed, as the product reads them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

from qrole.errors import OperandError
from qrole.quantizers.tensor import QuantizedTensor, QuantizedTensorStorage
from qrole.roles import Gemm

__all__ = ["CustomData", "GEMMType", "MMParams", "custom_product", "is_custom"]


class GEMMType(enum.Enum):
    """The product, as `qgemm` is told."""

    FPROP = "fprop"
    DGRAD = "dgrad"
    WGRAD = "wgrad"


@dataclass(frozen=True)
class MMParams:
    """Options of a product, as `qgemm` is told.

    Attributes:
        out_dtype: Of the result.
        use_split_accumulator: Add partial sums in fp32.
    """

    out_dtype: torch.dtype | None = None
    use_split_accumulator: bool = True


class CustomData(Protocol):
    """Attributes that a custom quantizer's data must have.

    Attributes:
        data: Codes (M, K).
        scale: Their decode scales.
        data_t: Codes of the transpose (K, M).
        scale_t: Their decode scales.
        original_shape: Shape of the tensor.
    """

    data: Tensor | None
    scale: Tensor | None
    data_t: Tensor | None
    scale_t: Tensor | None
    original_shape: Any


def is_custom(operand: object) -> TypeGuard[CustomData]:
    """Whether an operand was made by a quantizer class of the user's."""
    return isinstance(operand, QuantizedTensorStorage) and not isinstance(operand, QuantizedTensor)


def custom_product(
    gemm: Gemm, left: CustomData, right: CustomData, dtype: torch.dtype, bias: Tensor | None
) -> Tensor:
    """Left times right, by the `qgemm` of the quantizer that made one of them.

    Raises:
        OperandError: Neither knows its quantizer, or data that the product reads is missing.
    """
    quantizer = getattr(left, "_quantizer", None) or getattr(right, "_quantizer", None)
    if quantizer is None:
        raise OperandError(
            f"{gemm} of {type(left).__name__} and {type(right).__name__}",
            expected="data whose attribute _quantizer is the quantizer that made it",
            hint="set _quantizer where the quantizer builds its data",
        )
    transposed = gemm is Gemm.WGRAD, gemm is not Gemm.FPROP
    (a, a_scale), (b, b_scale) = (
        _stored(gemm, operand, t) for operand, t in zip((left, right), transposed, strict=True)
    )
    split = gemm is not Gemm.FPROP
    result: Tensor = quantizer.qgemm(
        a,
        b,
        MMParams(dtype, use_split_accumulator=split),
        dtype,
        a_scale,
        b_scale,
        bias,
        gemm_type=GEMMType(gemm.value),
        qresult_x=left,
        qresult_w=right,
    )
    return result


def _stored(gemm: Gemm, operand: CustomData, transposed: bool) -> tuple[Tensor, Tensor]:
    data = operand.data_t if transposed else operand.data
    scale = operand.scale_t if transposed else operand.scale
    if data is None or scale is None:
        side = "column-wise (data_t, scale_t)" if transposed else "row-wise (data, scale)"
        raise OperandError(
            f"{gemm} of a {type(operand).__name__} without {side} data",
            expected="data for the direction that the product reads",
            hint="make it where the quantizer's usage flag for that direction is set",
        )
    return data, scale
