"""Quantizing a tensor where no GEMM reads it: rounding to the format's grid and back.

Both directions are straight-through: the forward pass rounds the tensor, the backward pass rounds
the gradient, and neither differentiates the rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qrole.modules.prequantized import attach_quantized, quantized_form
from qrole.quantizers.base import Quantizer

__all__ = ["fake_quantize", "round_trip"]


def round_trip(tensor: Tensor, quantizer: Quantizer | None, *, carry: bool = False) -> Tensor:
    """The values of `tensor` after quantization, in its dtype; itself without a quantizer.

    Args:
        tensor: Any shape (..., K).
        quantizer: Its usage flags are set.
        carry: The result carries its quantized form, in both representations, for the next reader.
    """
    if quantizer is None or quantized_form(tensor) is not None:
        return tensor
    quantizer.set_usage(rowwise=True, columnwise=carry)
    quantized = quantizer(tensor)
    values = quantized.dequantize(dtype=tensor.dtype)
    return attach_quantized(values, quantized) if carry else values


class _FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, quantizer: Quantizer | None, grad: Quantizer | None, carry: bool
    ) -> Tensor:
        ctx.quantizer, ctx.carry = grad, carry
        values = round_trip(x, quantizer, carry=carry)
        return values if values is not x else x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None]:
        return round_trip(grad_output, ctx.quantizer, carry=ctx.carry), None, None, None


def fake_quantize(
    x: Tensor,
    quantizer: Quantizer | None = None,
    grad_quantizer: Quantizer | None = None,
    *,
    carry: bool = False,
) -> Tensor:
    """Rounds `x` in the forward pass and its gradient in the backward pass.

    Args:
        x: Any shape (..., K).
        quantizer: Rounds `x`; None leaves it.
        grad_quantizer: Rounds the gradient; None leaves it.
        carry: Results carry their quantized form, so that the next module does not quantize again.
    """
    if quantizer is None and grad_quantizer is None:
        return x
    result: Tensor = _FakeQuantize.apply(x, quantizer, grad_quantizer, carry)  # type: ignore[no-untyped-call]
    form = quantized_form(x)
    return attach_quantized(result, form) if form is not None and carry else result
