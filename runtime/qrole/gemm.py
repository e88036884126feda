"""The three products of a linear layer from quantized operands.

Shapes: M tokens, K in-features, N out-features. Stored representation that each product reads::

    fprop  y  (M, N) = x.row (M, K)  w.row (N, K)^T
    dgrad  dx (M, K) = dy.row (M, N) w.col (K, N)^T
    wgrad  dw (N, K) = dy.col (N, M) x.col (K, M)^T

Products are summed in fp32 and rounded once to the result's dtype. Operands of unequal rotation
(RHT on one side of wgrad only) are multiplied as they are, as TransformerEngine does; the result
is wrong there and here, and `qrole audit` reports it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from qrole.errors import OperandError
from qrole.quantizers.base import OperandFormat
from qrole.quantizers.tensor import QuantizedTensor
from qrole.roles import Gemm, Usage

__all__ = ["dgrad", "fprop", "incompatibility", "wgrad"]

Operand = QuantizedTensor | Tensor


def fprop(
    x: Operand, w: Operand, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None
) -> Tensor:
    """Output (..., N) of an input (..., K) and a weight (N, K).

    Args:
        x: Input.
        w: Weight.
        bias: (N,), added in fp32 before the result is rounded.
        out_dtype: Of the result; the input's dtype where None.

    Raises:
        OperandError: The two formats cannot meet, or a representation was not made.
    """
    return _product(Gemm.FPROP, x, Usage.ROWWISE, w, Usage.ROWWISE, bias, out_dtype).reshape(
        *x.shape[:-1], w.shape[0]
    )


def dgrad(dy: Operand, w: Operand, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """Input gradient (..., K) of an output gradient (..., N) and a weight (N, K); as `fprop`."""
    return _product(Gemm.DGRAD, dy, Usage.ROWWISE, w, Usage.COLUMNWISE, None, out_dtype).reshape(
        *dy.shape[:-1], w.shape[-1]
    )


def wgrad(dy: Operand, x: Operand, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """Weight gradient (N, K) of an output gradient (..., N) and an input (..., K); as `fprop`."""
    return _product(Gemm.WGRAD, dy, Usage.COLUMNWISE, x, Usage.COLUMNWISE, None, out_dtype)


def incompatibility(left: OperandFormat, right: OperandFormat) -> str:
    """Why two operands cannot meet in a GEMM; `""` where they can.

    The rules are TransformerEngine's, whose GEMM finds out late: both in high precision, or both
    of one family and, in blocks of 128, not both 2D.
    """
    if left.family != right.family:
        return f"{left.family} does not multiply with {right.family}"
    if left.family == "custom" and left.element != right.element:
        return f"data of {left.element} does not multiply with data of {right.element}"
    if left.family == "fp8_block" and left.block == right.block == (128, 128):
        return "blocks of 128x128 do not multiply with blocks of 128x128"
    return ""


def _product(
    gemm: Gemm,
    left: Operand,
    left_usage: Usage,
    right: Operand,
    right_usage: Usage,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
) -> Tensor:
    """Left (R, C) times right (S, C) transposed."""
    formats = _format(left, left_usage), _format(right, right_usage)
    reason = incompatibility(*formats)
    if reason:
        raise OperandError(
            f"{gemm} of {_named(left, left_usage)} and {_named(right, right_usage)}: {reason}",
            expected="two operands of one family of formats, or both in high precision",
            hint="give both slots quantizers whose sides in this GEMM are of one family; "
            "`qrole audit` lists every such pair",
        )
    dtype = out_dtype or left.dtype
    if formats[0].family == "high_precision":
        return _plain_product(left, left_usage, right, right_usage, bias, dtype)
    a, b = _matrix(left, left_usage), _matrix(right, right_usage)
    contracted = max(a.shape[1], b.shape[1])
    a, b = (pad(m, (0, contracted - m.shape[1])) for m in (a, b))
    y = a @ b.t()
    return (y if bias is None else y + bias.float()).to(dtype)


def _format(operand: Operand, usage: Usage) -> OperandFormat:
    if isinstance(operand, QuantizedTensor):
        return operand.format_of(usage)
    return OperandFormat("high_precision")


def _named(operand: Operand, usage: Usage) -> str:
    label = operand.quantizer.label if isinstance(operand, QuantizedTensor) else "a plain tensor"
    return f"{label} ({usage})"


def _matrix(operand: Operand, usage: Usage) -> Tensor:
    """fp32 (R, C) whose columns are what the product sums over."""
    assert isinstance(operand, QuantizedTensor), "plain tensors are multiplied as they are"
    data = operand.representation(usage)
    return operand.quantizer.gemm_matrix(data, usage, operand.matrix_shape)


def _plain_product(
    left: Operand,
    left_usage: Usage,
    right: Operand,
    right_usage: Usage,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """The same call as torch's own linear layer and its gradients make, bit for bit."""
    a, b = _plain(left, left_usage, dtype), _plain(right, right_usage, dtype)
    if left_usage is Usage.COLUMNWISE:
        return a.t() @ b
    if right_usage is Usage.ROWWISE:
        return linear(a, b, None if bias is None else bias.to(dtype))
    return a @ b


def _plain(operand: Operand, usage: Usage, dtype: torch.dtype) -> Tensor:
    if isinstance(operand, QuantizedTensor):
        return operand.representation(usage).data.to(dtype)
    return operand.reshape(-1, operand.shape[-1]).to(dtype)
