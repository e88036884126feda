"""What a run under a plan tells to whoever watches it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qrole.roles import Gemm, Slot

if TYPE_CHECKING:
    import torch

    from qrole.execute.layers import Layer
    from qrole.quantizers.tensor import QuantizedTensor

__all__ = ["Observer"]


class Observer:
    """Told of every operand and product of the covered layers; ignores all of it.

    Subclasses override what they need. Tensors are those of the run itself: read, never written.

    Attributes:
        wants_operands: Keep unquantized operands until the backward pass, so that `product` can
            compare with them there.
    """

    wants_operands: bool = False

    def operand(
        self, slot: Slot, copy: int, tensor: torch.Tensor, quantized: QuantizedTensor
    ) -> None:
        """One tensor was quantized; weights are told of once per run."""

    def product(
        self,
        layer: Layer,
        gemm: Gemm,
        copy: int,
        left: torch.Tensor,
        right: torch.Tensor,
        result: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> None:
        """One GEMM was computed from quantized operands.

        Args:
            layer: The layer.
            gemm: fprop (left (M, K), right (K, N)), dgrad (left (M, N), right (N, K)) or wgrad
                (left (N, M), right (M, K)).
            copy: Index of the expert.
            left: Unquantized left operand.
            right: Unquantized right operand.
            result: left @ right (+ bias), computed from the quantized operands.
            bias: Added in fprop, or None.
        """

    def output(self, layer: Layer, copy: int, output_MN: torch.Tensor) -> None:
        """A layer's forward result, quantized or not."""
