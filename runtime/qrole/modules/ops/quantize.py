"""ops.Quantize: hands its tensor on in quantized form."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from qrole.autocasting import current_autocast
from qrole.modules.fake_quantize import fake_quantize
from qrole.modules.ops.operation import BasicOperation
from qrole.modules.slots import SlotFacts
from qrole.quantizers import Quantizer

__all__ = ["Quantize"]


class Quantize(BasicOperation):
    """Quantizes its input, its gradient, or both; the identity outside `autocast`.

    It has no list of roles, so that a factory gets a bare role for its slots, with a warning.

    Args:
        forward: Quantize the input.
        backward: Quantize the gradient, unless the recipe overrides the backward pass.
    """

    def __init__(self, forward: bool = True, backward: bool = False) -> None:
        super().__init__()
        self._slots = {"forward": forward, "backward": backward}

    @override
    def slot_facts(self, mode: str) -> list[SlotFacts]:
        return [SlotFacts("")] if self._slots[mode] else []

    @override
    def op_forward(
        self,
        x: Tensor,
        *extra: Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
    ) -> Tensor:
        state = current_autocast()
        if not state.enabled:
            return x
        grad = self.get_quantizer("backward", 0)
        if state.get_recipe().backward_override is not None:
            grad = None
        return fake_quantize(x, self.get_quantizer("forward", 0), grad, carry=True)
