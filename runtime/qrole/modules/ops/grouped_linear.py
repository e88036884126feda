"""ops.GroupedLinear: one linear layer per group, each on its own rows of the input."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from typing_extensions import override

from qrole.autocasting import current_autocast
from qrole.errors import ConfigError
from qrole.modules.expert_quantizers import check_experts
from qrole.modules.grouped_linear import fold_experts, grouped_linear, split_sizes
from qrole.modules.keywords import GroupedOpKeywords, check_keywords
from qrole.modules.linear_function import LinearQuantizers
from qrole.modules.ops.basic_linear import compute_dtype, kaiming_init
from qrole.modules.ops.operation import BasicOperation
from qrole.modules.parameters import empty_parameter
from qrole.modules.slots import SlotFacts
from qrole.quantizers import Quantizer
from qrole.roles import QuantizerRole, Slot
from qrole.state import CustomRecipeState, RecipeState

__all__ = ["GroupedLinear"]


class GroupedLinear(BasicOperation):
    """`y_i = x_i W_i^T + b_i` for the rows `x_i` of each group.

    Its extra input is the number of rows of each group, and with `scale_bias` the factor of each
    row's bias. Slots: input, weight for every group in turn, and backward grad_output. Its roles
    say `linear`, not `grouped_linear` as those of `qrole.GroupedLinear`.

    Args:
        num_groups: Number of groups, > 0.
        in_features: Size of each input row.
        out_features: Size of each output row.
        bias: Learn biases.
        device: Of the parameters; CUDA, or the default device on a machine without it.
        dtype: Of the parameters; torch's default where None.
        scale_bias: Multiply each row's bias by a factor.
        keywords: TransformerEngine's further keywords, of no effect here: `keywords.py`.
    """

    def __init__(
        self,
        num_groups: int,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        scale_bias: bool = False,
        **keywords: Unpack[GroupedOpKeywords],
    ) -> None:
        check_keywords("ops.GroupedLinear", GroupedOpKeywords, keywords)
        super().__init__()
        if min(num_groups, in_features, out_features) <= 0:
            raise ConfigError(
                f"ops.GroupedLinear({num_groups}, {in_features}, {out_features})",
                expected="a positive number of groups and positive sizes",
                hint="the arguments are num_groups, in_features, out_features",
            )
        self.num_groups = num_groups
        self.in_features = in_features
        self.out_features = out_features
        self.use_bias = bias
        self.scale_bias = scale_bias and bias
        self.num_extra_inputs = 2 if self.scale_bias else 1
        for i in range(num_groups):
            weight = empty_parameter(out_features, in_features, device=device, dtype=dtype)
            self.register_parameter(f"weight{i}", weight)
        for i in range(num_groups):
            made = empty_parameter(out_features, device=device, dtype=dtype) if bias else None
            self.register_parameter(f"bias{i}", made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fills the parameters with initial values."""
        for i in range(self.num_groups):
            kaiming_init(self.get_parameter(f"weight{i}"))
            if self.use_bias:
                nn.init.zeros_(self.get_parameter(f"bias{i}"))

    @override
    def slot_facts(self, mode: str) -> list[SlotFacts]:
        if mode == "backward":
            return [SlotFacts("grad_output")] * self.num_groups
        shape = (self.out_features, self.in_features)
        facts = []
        for i in range(self.num_groups):
            facts.append(SlotFacts("input"))
            facts.append(SlotFacts("weight", shape=shape, parameters=(f"weight{i}",)))
        return facts

    @override
    def get_quantizer_roles(self, mode: str) -> list[QuantizerRole] | None:
        tensors = ("input", "weight") if mode == "forward" else ("grad_output",)
        return [QuantizerRole("linear", t, self.name) for t in tensors] * self.num_groups

    @override
    def quantizer_slots(self, path: str) -> list[Slot]:
        return fold_experts(super().quantizer_slots(path), self.num_groups)

    @override
    def _make_quantizers(self, state: RecipeState) -> list[Quantizer]:
        made = super()._make_quantizers(state)
        if isinstance(state, CustomRecipeState):
            operands = ("input", "weight") if state.forward else ("grad_output",)
            for i, operand in enumerate(operands):
                check_experts(made[i :: len(operands)], operand)
        return made

    @override
    def op_forward(
        self,
        x: Tensor,
        *extra: Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
    ) -> Tensor:
        dtype = compute_dtype(x, self.get_parameter("weight0"))
        matrix = x.to(dtype).reshape(-1, self.in_features)
        sizes = split_sizes(extra[0], self.num_groups, matrix.shape[0])
        weights = [self.get_parameter(f"weight{i}").to(dtype) for i in range(self.num_groups)]
        none: list[Tensor | None] = [None] * self.num_groups
        biases = none
        if self.use_bias:
            biases = [self.get_parameter(f"bias{i}").to(dtype) for i in range(self.num_groups)]
        quantizers = self._group_quantizers()
        added = none if self.scale_bias else biases
        y = grouped_linear(matrix, sizes, weights, added, quantizers, [None] * self.num_groups)
        if self.scale_bias:
            y = y + self._scaled_biases(biases, extra[1], sizes, matrix.shape[0])
        return y.reshape(*x.shape[:-1], self.out_features)

    def _group_quantizers(self) -> list[LinearQuantizers]:
        state = current_autocast()
        if not state.enabled:
            return [LinearQuantizers()] * self.num_groups
        override = state.get_recipe().backward_override
        return [
            LinearQuantizers(
                input=self.get_quantizer("forward", 2 * i),
                weight=self.get_quantizer("forward", 2 * i + 1),
                grad_output=self.get_quantizer("backward", i),
                backward_override=override,
            )
            for i in range(self.num_groups)
        ]

    def _scaled_biases(
        self, biases: list[Tensor | None], scales: Tensor, sizes: list[int], rows: int
    ) -> Tensor:
        """Each row's bias times its factor; zero in rows of no group."""
        stacked = torch.stack([b for b in biases if b is not None])
        group = torch.repeat_interleave(
            torch.arange(self.num_groups, device=stacked.device),
            torch.tensor(sizes, device=stacked.device),
        )
        scaled = stacked[group] * scales[: len(group)].to(stacked.dtype).unsqueeze(-1)
        return torch.cat([scaled, scaled.new_zeros(rows - len(group), self.out_features)])
