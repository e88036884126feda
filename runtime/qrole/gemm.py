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

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from qrole.custom_gemm import custom_product, is_custom
from qrole.errors import OperandError
from qrole.quantizers.base import OperandFormat
from qrole.quantizers.tensor import QuantizedTensor, QuantizedTensorStorage
from qrole.roles import Gemm, Usage
from qrole_kernels import gemm as kernel
from qrole_kernels.operand import Operand

__all__ = ["dgrad", "fprop", "incompatibility", "wgrad"]

Given = QuantizedTensorStorage | Tensor


def fprop(
    x: Given, w: Given, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None
) -> Tensor:
    """Output (..., N) of an input (..., K) and a weight (N, K).

    Args:
        x: Input, quantized or in high precision.
        w: Weight, likewise.
        bias: (N,), added in fp32 before the result is rounded.
        out_dtype: Of the result; the input's dtype where None.

    Raises:
        OperandError: The two formats cannot meet, or a representation was not made.
    """
    left, right = _Side(x, Usage.ROWWISE), _Side(w, Usage.ROWWISE)
    y_MN = _product(Gemm.FPROP, left, right, bias, out_dtype)
    if len(left.shape) == 2:
        return y_MN  # A view made inside an autograd function could not be changed in place.
    return y_MN.reshape(*left.shape[:-1], y_MN.shape[1])


def dgrad(dy: Given, w: Given, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """Input gradient (..., K) of an output gradient (..., N) and a weight (N, K); as `fprop`."""
    left, right = _Side(dy, Usage.ROWWISE), _Side(w, Usage.COLUMNWISE)
    dx_MK = _product(Gemm.DGRAD, left, right, None, out_dtype)
    return dx_MK.reshape(*left.shape[:-1], dx_MK.shape[1])


def wgrad(dy: Given, x: Given, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """Weight gradient (N, K) of an output gradient (..., N) and an input (..., K); as `fprop`."""
    left, right = _Side(dy, Usage.COLUMNWISE), _Side(x, Usage.COLUMNWISE)
    return _product(Gemm.WGRAD, left, right, None, out_dtype)


def incompatibility(left: OperandFormat, right: OperandFormat) -> str:
    """Why two operands cannot meet in a GEMM; `""` where they can.

    The rules are TransformerEngine's and cuBLAS's, which find out late: both in high precision, or
    both of one family; not both 128x128 blocks; not both E5M2.
    """
    if left.family != right.family:
        return f"{left.family} does not multiply with {right.family}"
    if left.reference != right.reference:
        return "data of a Python reference multiplies with data of a Python reference only"
    if left.family == "fp8_block" and left.block == right.block == (128, 128):
        return "blocks of 128x128 do not multiply with blocks of 128x128"
    if left.element == right.element == "e5m2":
        return "E5M2 does not multiply with E5M2"
    return ""


@dataclass(frozen=True)
class _Side:
    """One operand and the representation of it that the GEMM reads."""

    given: Given
    usage: Usage

    @property
    def shape(self) -> torch.Size:
        if isinstance(self.given, (Tensor, QuantizedTensor)):
            return self.given.shape
        return torch.Size(self.given.original_shape)  # type: ignore[attr-defined]

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.given.dtype  # type: ignore[union-attr]
        return dtype

    @property
    def format(self) -> OperandFormat:
        if isinstance(self.given, QuantizedTensor):
            return self.given.format_of(self.usage)
        return OperandFormat("high_precision" if isinstance(self.given, Tensor) else "custom")

    @property
    def name(self) -> str:
        if isinstance(self.given, QuantizedTensor):
            return f"{self.given.quantizer.label} ({self.usage})"
        return "a plain tensor" if isinstance(self.given, Tensor) else type(self.given).__name__

    def operand(self) -> Operand:
        """For two quantized operands."""
        assert isinstance(self.given, QuantizedTensor), "plain tensors are multiplied as they are"
        data = self.given.representation(self.usage)
        return self.given.quantizer.operand(data, self.usage, self.given.matrix_shape)

    def plain(self, dtype: torch.dtype) -> Tensor:
        """The matrix as it is stored, for two high-precision operands."""
        if isinstance(self.given, QuantizedTensor):
            return self.given.representation(self.usage).data.to(dtype)
        assert isinstance(self.given, Tensor), "in high precision"
        return self.given.reshape(-1, self.given.shape[-1]).to(dtype)


def _product(
    gemm: Gemm, left: _Side, right: _Side, bias: Tensor | None, out_dtype: torch.dtype | None
) -> Tensor:
    dtype = out_dtype or left.dtype
    formats = left.format, right.format
    reason = incompatibility(*formats)
    if reason:
        raise OperandError(
            f"{gemm} of {left.name} and {right.name}: {reason}",
            expected="two operands of one family of formats, or both in high precision",
            hint="give both slots quantizers whose sides in this GEMM are of one family; "
            "`qrole audit` lists every such pair",
        )
    if is_custom(left.given) and is_custom(right.given):
        return custom_product(gemm, left.given, right.given, dtype, bias)
    if formats[0].family == "high_precision":
        return _plain_product(gemm, left.plain(dtype), right.plain(dtype), bias, dtype)
    return kernel.gemm(*_equally_long(left.operand(), right.operand()), dtype, bias)


def _plain_product(
    gemm: Gemm, left: Tensor, right: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """The same calls as torch's linear layer and its gradients make, bit for bit."""
    if gemm is Gemm.FPROP:
        return linear(left, right, None if bias is None else bias.to(dtype))
    return left @ right if gemm is Gemm.DGRAD else left.t() @ right


def _equally_long(left: Operand, right: Operand) -> tuple[Operand, Operand]:
    """Pads the shorter of two NVFP4 operands with zeros: only transformed ones are padded."""
    columns = max(left.shape[1], right.shape[1])
    return _padded(left, columns), _padded(right, columns)


def _padded(operand: Operand, columns: int) -> Operand:
    if operand.format != "nvfp4" or operand.shape[1] == columns:
        return operand
    assert operand.scale is not None, "blocks have scales"
    return dataclasses.replace(
        operand,
        data=pad(operand.data, (0, columns // 2 - operand.data.shape[1])),
        scale=pad(operand.scale, (0, columns // 16 - operand.scale.shape[1])),
        columns=None,
    )
