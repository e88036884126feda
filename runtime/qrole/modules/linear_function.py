"""The three GEMMs of a linear layer with quantized operands, as one differentiable function.

::

    fprop  y  = Qrow(x)  Qrow(w)^T
    dgrad  dx = Qrow(dy) Qcol(w)
    wgrad  dw = Qcol(dy)^T Qcol(x)

The gradient of the bias is the sum of the gradient before it is quantized.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qrole import gemm
from qrole.modules.fake_quantize import round_trip
from qrole.modules.prequantized import quantized_form
from qrole.modules.saved_operands import Operand, restore_operands, save_operands
from qrole.quantizers import Float8Quantizer, Quantizer
from qrole.state import is_first_module, update_delayed_scaling

__all__ = ["LinearQuantizers", "calibrate", "quantized_linear"]


@dataclass(frozen=True)
class LinearQuantizers:
    """Who quantizes the tensors of one linear layer; None leaves a tensor in high precision.

    Attributes:
        input: The input, for fprop and wgrad.
        weight: The weight, for fprop and dgrad.
        output: The result; the next module reads it quantized.
        grad_output: The gradient of the output, for dgrad and wgrad.
        grad_input: The gradient of the input; the previous module reads it quantized.
        backward_override: `high_precision` runs dgrad and wgrad on the unquantized operands,
            `dequantized` on what fprop's operands stand for; None on quantized operands.
    """

    input: Quantizer | None = None
    weight: Quantizer | None = None
    output: Quantizer | None = None
    grad_output: Quantizer | None = None
    grad_input: Quantizer | None = None
    backward_override: str | None = None


def _operand(
    tensor: Tensor, quantizer: Quantizer | None, *, rowwise: bool, columnwise: bool
) -> Operand:
    """The tensor quantized, unless it is already or nobody quantizes it."""
    if quantizer is None:
        return tensor
    form = quantized_form(tensor)
    if form is not None:
        return form
    quantizer.set_usage(rowwise=rowwise, columnwise=columnwise)
    return quantizer(tensor)


def _matrix(x: Tensor) -> Tensor:
    """(..., K) as (M, K); an object that carries a quantized form stays that object."""
    return x if x.dim() == 2 or quantized_form(x) is not None else x.reshape(-1, x.shape[-1])


def _dequantized(operand: Operand, dtype: torch.dtype) -> Tensor:
    if isinstance(operand, Tensor):
        return operand.reshape(-1, operand.shape[-1])
    values: Tensor = operand.dequantize(dtype=dtype)
    return values.reshape(-1, values.shape[-1])


class _QuantizedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        quantizers: LinearQuantizers,
        weight_operand: Operand | None,
        recording: bool,
    ) -> Tensor:
        ctx.quantizers, ctx.dtype, ctx.shape = quantizers, x.dtype, x.shape
        wanted = [needed and recording for needed in ctx.needs_input_grad[:3]]
        dx_wanted, dw_wanted, _ = wanted
        keep = quantizers.backward_override is None
        ctx.ends_step = quantizers.input is not None and any(wanted) and is_first_module()
        x_op = _operand(_matrix(x), quantizers.input, rowwise=True, columnwise=dw_wanted and keep)
        w_op = weight_operand
        if w_op is None:
            w_op = _operand(weight, quantizers.weight, rowwise=True, columnwise=dx_wanted and keep)
        with torch.autocast(x.device.type, enabled=False):
            y = gemm.fprop(x_op, w_op, bias, out_dtype=x.dtype)
        if quantizers.backward_override == "high_precision":
            x_op, w_op = _matrix(x), weight
        elif quantizers.backward_override == "dequantized":
            x_op, w_op = (_dequantized(operand, x.dtype) for operand in (x_op, w_op))
        save_operands(ctx, x_op if dw_wanted else None, w_op if dx_wanted else None)
        y = y.reshape(*x.shape[:-1], weight.shape[0])
        return round_trip(y, quantizers.output, carry=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        quantizers: LinearQuantizers = ctx.quantizers
        dx_wanted, dw_wanted, db_wanted = ctx.needs_input_grad[:3]
        dy = _matrix(grad_output)
        db = dy.reshape(-1, dy.shape[-1]).sum(dim=0) if db_wanted else None
        plain = quantizers.backward_override is not None
        dy_op = _operand(
            dy,
            None if plain else quantizers.grad_output,
            rowwise=dx_wanted,
            columnwise=dw_wanted,
        )
        x_op, w_op = restore_operands(ctx)
        dx = dw = None
        with torch.autocast(dy.device.type, enabled=False):
            if dx_wanted:
                dx = gemm.dgrad(dy_op, w_op, out_dtype=ctx.dtype).reshape(ctx.shape)
                dx = round_trip(dx, None if plain else quantizers.grad_input, carry=True)
            if dw_wanted:
                dw = gemm.wgrad(dy_op, x_op, out_dtype=ctx.dtype)
        if ctx.ends_step:
            update_delayed_scaling(forward=False)
        return dx, dw, db, None, None, None


def calibrate(*seen: tuple[Tensor, Quantizer]) -> None:
    """Lets delayed scaling record the amaxes of tensors that are not quantized."""
    for tensor, quantizer in seen:
        if isinstance(quantizer, Float8Quantizer):
            quantizer.calibrate(tensor)


def quantized_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    quantizers: LinearQuantizers | None = None,
    *,
    weight_operand: Operand | None = None,
) -> Tensor:
    """`x @ weight.T + bias` with quantized operands forward and backward.

    Args:
        x: (..., in), fp32, bf16 or fp16.
        weight: (out, in), of x's dtype.
        bias: (out,), of x's dtype.
        quantizers: Who quantizes what; None runs all three GEMMs in high precision.
        weight_operand: The weight as it was quantized before, instead of quantizing it again.

    Returns:
        (..., out) of x's dtype.

    Raises:
        OperandError: Two operands of one GEMM are of formats that cannot meet.
    """
    result: Tensor = _QuantizedLinear.apply(  # type: ignore[no-untyped-call]
        x,
        weight,
        bias,
        quantizers or LinearQuantizers(),
        weight_operand,
        torch.is_grad_enabled(),
    )
    return result
