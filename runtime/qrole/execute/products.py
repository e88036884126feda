"""The three GEMMs of a covered layer as one autograd function.

Shapes: M tokens, K in-features, N out-features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from qrole import gemm
from qrole.quantizers.tensor import QuantizedTensor, Representation
from qrole.roles import Gemm, Usage

if TYPE_CHECKING:
    from qrole.execute.layers import Layer
    from qrole.execute.run import Execution

__all__ = ["Call", "operands_that_meet", "quantized_linear"]


@dataclass(frozen=True)
class Call:
    """One multiplication with a covered weight.

    Attributes:
        run: The run it is part of.
        layer: The layer.
        copy: Index of the expert.
        stable: The quantized weight may be kept for later calls.
        differentiable: Gradients are being recorded.
        repeated: The forward pass is a recomputation, of which nobody is told.
    """

    run: Execution
    layer: Layer
    copy: int
    stable: bool
    differentiable: bool
    repeated: bool


class QuantizedLinear(torch.autograd.Function):
    """`y = x @ w.T + bias` with every GEMM from quantized operands.

    The bias gradient is the sum of the unquantized output gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, x_MK: torch.Tensor, w_NK: torch.Tensor, bias: torch.Tensor | None, call: Call
    ) -> torch.Tensor:
        """Quantizes input and weight, multiplies, and keeps what the backward pass reads."""
        run = call.run
        needs_dx = call.differentiable and ctx.needs_input_grad[0]
        needs_dw = call.differentiable and ctx.needs_input_grad[1]
        qw = run.quantize_weight(call, w_NK, x_MK.dtype, columnwise=needs_dx)
        qx = run.quantize(call, "input", x_MK, rowwise=True, columnwise=needs_dw)
        y_MN = gemm.fprop(*operands_that_meet(qx, Usage.ROWWISE, qw, Usage.ROWWISE), bias)
        if not call.repeated:
            w = w_NK.to(x_MK.dtype)
            run.observer.product(call.layer, Gemm.FPROP, call.copy, x_MK, w.t(), y_MN, bias)
        ctx.call, ctx.weight = call, qw
        ctx.input, tensors = _packed(qx) if needs_dw else (None, ())
        keep = run.observer.wants_operands
        ctx.save_for_backward(
            x_MK if keep and needs_dw else None, w_NK if keep and needs_dx else None, *tensors
        )
        return y_MN

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy_MN: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Quantizes the output gradient; dgrad and wgrad as far as they are needed."""
        ctx.call.run.begin_backward(ctx.call.layer)
        saved = ctx.saved_tensors  # Has a checkpoint run the model again, under the mode.
        # The mode is on while autograd runs, and would take the products below for the model's.
        with torch._C.DisableTorchFunction():
            return _backward(ctx, dy_MN, *saved)


def _backward(
    ctx: Any,
    dy_MN: torch.Tensor,
    x_MK: torch.Tensor | None,
    w_NK: torch.Tensor | None,
    *tensors: torch.Tensor | None,
) -> tuple[torch.Tensor | None, ...]:
    call: Call = ctx.call
    run, (needs_dx, needs_dw, needs_db, _) = call.run, ctx.needs_input_grad
    dx = dw = None
    if not (needs_dx or needs_dw):
        return None, None, dy_MN.sum(0) if needs_db else None, None
    qdy = run.quantize(call, "grad_output", dy_MN, rowwise=needs_dx, columnwise=needs_dw)
    if needs_dx:
        dx = gemm.dgrad(*operands_that_meet(qdy, Usage.ROWWISE, ctx.weight, Usage.COLUMNWISE))
        if w_NK is not None:
            w = w_NK.to(dy_MN.dtype)
            run.observer.product(call.layer, Gemm.DGRAD, call.copy, dy_MN, w, dx, None)
    if needs_dw:
        qx = ctx.input(tensors)
        dw = gemm.wgrad(*operands_that_meet(qdy, Usage.COLUMNWISE, qx, Usage.COLUMNWISE))
        if x_MK is not None:
            run.observer.product(call.layer, Gemm.WGRAD, call.copy, dy_MN.t(), x_MK, dw, None)
    return dx, dw, dy_MN.sum(0) if needs_db else None, None


def _packed(
    quantized: QuantizedTensor,
) -> tuple[Callable[[Sequence[Any]], QuantizedTensor], tuple[torch.Tensor | None, ...]]:
    """The column-wise data as tensors for autograd to keep, and what puts them together again.

    Autograd has to hold them itself, so that checkpointing can let go of them.
    """
    made = quantized.columnwise
    if not isinstance(made, Representation):
        return (lambda _: quantized), ()
    shape, dtype, quantizer = quantized.shape, quantized.dtype, quantized.quantizer

    def unpacked(tensors: Sequence[Any]) -> QuantizedTensor:
        columnwise = Representation(*tensors)
        return QuantizedTensor(shape, dtype, quantizer, columnwise=columnwise)

    return unpacked, (made.data, made.scale_inv, made.amax)


def quantized_linear(
    x_MK: torch.Tensor, w_NK: torch.Tensor, bias: torch.Tensor | None, call: Call
) -> torch.Tensor:
    """`x @ w.T + bias` by the call's quantizers, differentiable."""
    y_MN: torch.Tensor = QuantizedLinear.apply(x_MK, w_NK, bias, call)  # type: ignore[no-untyped-call]
    return y_MN


Operand = QuantizedTensor | torch.Tensor


def operands_that_meet(
    left: QuantizedTensor, left_usage: Usage, right: QuantizedTensor, right_usage: Usage
) -> tuple[Operand, Operand]:
    """Both operands as the GEMM takes them.

    TransformerEngine refuses a quantized operand beside a high-precision one; weight-only inference
    engines compute exactly that, from the dequantized tensor, and so does this.
    """
    plain_left = left.format_of(left_usage).family == "high_precision"
    plain_right = right.format_of(right_usage).family == "high_precision"
    if plain_left == plain_right:
        return left, right
    return left.dequantize(direction=left_usage), right.dequantize(direction=right_usage)
