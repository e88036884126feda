"""BasicLinear: a weight and its three GEMMs, without bias."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn
from typing_extensions import override

from qrole.autocasting import current_autocast
from qrole.errors import OperandError
from qrole.modules.keywords import BasicLinearKeywords, check_keywords
from qrole.modules.linear_function import LinearQuantizers, quantized_linear
from qrole.modules.ops.operation import BasicOperation
from qrole.modules.parameters import empty_parameter
from qrole.modules.slots import SlotFacts
from qrole.quantizers import Float8Quantizer, IdentityQuantizer, Quantizer
from qrole.roles import QuantizerRole

__all__ = ["BasicLinear", "compute_dtype", "kaiming_init"]


def compute_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """What an op computes in: torch.autocast's dtype, else the weight's."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


@torch.no_grad()
def kaiming_init(weight: Tensor) -> None:
    """The default of the ops, which is that of `torch.nn.Linear`."""
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))


class BasicLinear(BasicOperation):
    """`y = x W^T`.

    Slots: forward input, weight; backward grad_output. Output and input gradient are quantized by
    the neighbours' slots, which must have delayed scaling then.

    Args:
        in_features: Size of each input row.
        out_features: Size of each output row.
        device: Of the weight; CUDA, or the default device on a machine without it.
        dtype: Of the weight; torch's default where None.
        keywords: TransformerEngine's further keywords, of no effect here: `keywords.py`.

    Attributes:
        plain_neighbours: The neighbours' slots may also be in high precision, which
            TransformerEngine refuses. Runs under a plan set it.
    """

    plain_neighbours: bool = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **keywords: Unpack[BasicLinearKeywords],
    ) -> None:
        check_keywords("ops.BasicLinear", BasicLinearKeywords, keywords)
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = empty_parameter(out_features, in_features, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fills the weight with initial values."""
        kaiming_init(self.weight)

    @override
    def slot_facts(self, mode: str) -> list[SlotFacts]:
        if mode == "backward":
            return [SlotFacts("grad_output")]
        shape = (self.out_features, self.in_features)
        return [SlotFacts("input"), SlotFacts("weight", shape=shape, parameters=("weight",))]

    @override
    def get_quantizer_roles(self, mode: str) -> list[QuantizerRole] | None:
        tensors = ("input", "weight") if mode == "forward" else ("grad_output",)
        return [QuantizerRole("linear", tensor, self.name) for tensor in tensors]

    @override
    def op_forward(
        self,
        x: Tensor,
        *extra: Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
    ) -> Tensor:
        dtype = compute_dtype(x, self.weight)
        x = x if x.dtype == dtype else x.to(dtype)
        state = current_autocast()
        if not state.enabled:
            return quantized_linear(x, self.weight.to(dtype))
        if self.plain_neighbours:
            next_op_input_quantizer = _unless_plain(next_op_input_quantizer)
            prev_op_grad_output_quantizer = _unless_plain(prev_op_grad_output_quantizer)
        _check_neighbour("output", next_op_input_quantizer)
        _check_neighbour("grad input", prev_op_grad_output_quantizer)
        quantizers = LinearQuantizers(
            input=self.get_quantizer("forward", 0),
            weight=self.get_quantizer("forward", 1),
            output=next_op_input_quantizer,
            grad_output=self.get_quantizer("backward", 0),
            grad_input=prev_op_grad_output_quantizer,
            backward_override=state.get_recipe().backward_override,
        )
        return quantized_linear(x, self.weight.to(dtype), None, quantizers)


def _unless_plain(quantizer: Quantizer | None) -> Quantizer | None:
    return None if isinstance(quantizer, IdentityQuantizer) else quantizer


def _check_neighbour(tensor: str, quantizer: Quantizer | None) -> None:
    if quantizer is None or isinstance(quantizer, Float8Quantizer):
        return
    raise OperandError(
        f"Attempting to generate quantized {tensor} tensor with unsupported quantizer "
        f"{type(quantizer).__name__}",
        expected="Float8Quantizer (delayed scaling), the only one that an op's GEMM writes",
        hint="put another op, such as ops.Bias or ops.Identity, between the two",
    )
