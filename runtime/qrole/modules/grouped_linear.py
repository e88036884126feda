"""GroupedLinear: one linear layer per expert, each on its own rows of the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor, nn
from typing_extensions import override

from qrole.errors import ConfigError, OperandError
from qrole.modules.base import QuantizedModule
from qrole.modules.expert_quantizers import check_experts
from qrole.modules.keywords import GroupedLinearKeywords, check_keywords
from qrole.modules.linear_function import LinearQuantizers, calibrate, quantized_linear
from qrole.modules.parameters import Init, default_init, empty_parameter
from qrole.modules.slots import SlotFacts
from qrole.quantizers import QuantizedTensor, Quantizer
from qrole.recipes import Recipe
from qrole.roles import QuantizerRole, Slot
from qrole.state import CustomRecipeState, RecipeState

__all__ = ["GroupedLinear", "fold_experts", "grouped_linear", "split_sizes"]


def split_sizes(m_splits: Tensor | Sequence[int], experts: int, rows: int) -> list[int]:
    """Rows per expert as numbers.

    Raises:
        ConfigError: Another number of experts, or more rows than there are.
    """
    sizes = m_splits.tolist() if isinstance(m_splits, Tensor) else [int(m) for m in m_splits]
    if len(sizes) != experts:
        raise ConfigError(
            f"m_splits with {len(sizes)} entries for {experts} experts",
            expected="one number of rows per expert",
            hint="give experts without tokens a 0",
        )
    if sum(sizes) > rows:
        raise ConfigError(
            f"m_splits {sizes} for {rows} rows",
            expected=f"numbers that add up to at most {rows}",
            hint="they count rows of the input, experts in order",
        )
    return sizes


def grouped_linear(
    x: Tensor,
    sizes: Sequence[int],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    quantizers: Sequence[LinearQuantizers],
    kept: Sequence[QuantizedTensor | None],
) -> Tensor:
    """Each expert's linear layer on its rows; rows beyond the last expert's are zero.

    Args:
        x: (M, in).
        sizes: Rows of each expert, in order; an expert without rows is left out of every GEMM.
        weights: (out, in) each.
        biases: (out,) each, or None.
        quantizers: Of each expert.
        kept: Weights that are quantized already.

    Returns:
        (M, out).
    """
    parts = torch.split(x, [*sizes, x.shape[0] - sum(sizes)])
    outputs = [
        quantized_linear(
            part, w, b, q if len(part) else None, weight_operand=k if len(part) else None
        )
        for part, w, b, q, k in zip(parts[:-1], weights, biases, quantizers, kept, strict=True)
    ]
    rest = parts[-1].new_zeros(len(parts[-1]), weights[0].shape[0])
    return torch.cat([*outputs, rest])


class GroupedLinear(QuantizedModule):
    """`y_i = x_i W_i^T + b_i` for the rows `x_i` of each expert.

    Slots: input, weight, output for every expert in turn, and backward grad_output, grad_input.
    The roles do not tell experts apart. Output and grad_input are built and never read.

    Args:
        num_gemms: Number of experts.
        in_features: Size of each input row.
        out_features: Size of each output row.
        init_method: Fills each weight in place; normal with deviation 0.023 where None.
        bias: Learn biases.
        return_bias: Return the biases as a second result instead of adding them.
        params_dtype: Dtype of the parameters; torch's default where None.
        device: Of the parameters; `cuda` is the default device on a machine without CUDA.
        name: Goes into the roles.
        keywords: TransformerEngine's further keywords, of no effect here: `keywords.py`.
    """

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        *,
        init_method: Init | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        device: torch.device | str = "cuda",
        name: str | None = None,
        **keywords: Unpack[GroupedLinearKeywords],
    ) -> None:
        check_keywords("GroupedLinear", GroupedLinearKeywords, keywords)
        super().__init__(name)
        self.num_gemms = num_gemms
        self.in_features = in_features
        self.out_features = out_features
        self.use_bias = bias
        self.return_bias = return_bias
        self.init_method = init_method or default_init
        for i in range(num_gemms):
            weight = empty_parameter(out_features, in_features, device=device, dtype=params_dtype)
            self.register_parameter(f"weight{i}", weight)
        for i in range(num_gemms):
            made = empty_parameter(out_features, device=device, dtype=params_dtype)
            self.register_parameter(f"bias{i}", made if bias else None)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Fills the parameters with initial values; those on the meta device have none."""
        for i in range(self.num_gemms):
            self.init_method(self.get_parameter(f"weight{i}"))
            if self.use_bias:
                nn.init.zeros_(self.get_parameter(f"bias{i}"))

    @property
    @override
    def slot_facts(self) -> tuple[list[SlotFacts], list[SlotFacts]]:
        shape = (self.out_features, self.in_features)
        forward, backward = [], []
        for i in range(self.num_gemms):
            forward += [
                SlotFacts("input"),
                SlotFacts("weight", shape=shape, parameters=(f"weight{i}",)),
                SlotFacts("output", consumed=False),
            ]
            backward += [SlotFacts("grad_output"), SlotFacts("grad_input", consumed=False)]
        return forward, backward

    @override
    def get_quantizer_roles(
        self, *, fwd: bool, num_quantizers: int
    ) -> list[QuantizerRole | None] | None:
        if fwd:
            roles = [
                QuantizerRole("grouped_linear", "input", self.name),
                QuantizerRole("grouped_linear", "weight", self.name),
                self.output_quantizer_role,
            ]
        else:
            roles = [
                QuantizerRole("grouped_linear", "grad_output", self.name),
                self.grad_input_quantizer_role,
            ]
        return [roles[i % len(roles)] for i in range(num_quantizers)]

    @override
    def quantizer_slots(self, path: str) -> list[Slot]:
        """As in `QuantizedModule`; experts of equal roles are folded into slots of many copies."""
        return fold_experts(super().quantizer_slots(path), self.num_gemms)

    @override
    def _make_quantizers(self, state: RecipeState, recipe: Recipe) -> list[Quantizer]:
        made = super()._make_quantizers(state, recipe)
        if isinstance(state, CustomRecipeState):
            operands = ("input", "weight") if state.forward else ("grad_output",)
            stride = len(made) // self.num_gemms
            for i, operand in enumerate(operands):
                check_experts(made[i::stride], operand)
        return made

    def forward(
        self,
        inp: Tensor,
        m_splits: Tensor | Sequence[int],
        is_first_microbatch: bool | None = None,
    ) -> Tensor | tuple[Tensor, list[Tensor | None]]:
        """Applies every expert to its rows.

        Args:
            inp: (..., in_features), rows of one expert after those of another.
            m_splits: Number of rows of each expert.
            is_first_microbatch: As in `Linear`.

        Returns:
            (..., out_features), with `return_bias` followed by the list of biases.
        """
        if isinstance(inp, QuantizedTensor):
            raise OperandError(
                "GroupedLinear doesn't support input tensor in FP8",
                expected="a tensor in high precision",
                hint="pass inp.dequantize()",
            )
        x = self._prepare(inp, num_gemms=self.num_gemms)
        matrix = x.reshape(-1, self.in_features)
        sizes = split_sizes(m_splits, self.num_gemms, matrix.shape[0])
        weights = [self.get_parameter(f"weight{i}").to(x.dtype) for i in range(self.num_gemms)]
        biases: list[Tensor | None] = [None] * self.num_gemms
        if self.use_bias:
            biases = [self.get_parameter(f"bias{i}").to(x.dtype) for i in range(self.num_gemms)]
        quantizers = self._expert_quantizers()
        if self.fp8_calibration and not self.fp8:
            self._calibrate(matrix, sizes, weights)
        kept = [
            self._kept_weight(f"weight{i}", w, q.weight, is_first_microbatch) if q.weight else None
            for i, (w, q) in enumerate(zip(weights, quantizers, strict=True))
        ]
        added = [None] * self.num_gemms if self.return_bias else biases
        y = grouped_linear(matrix, sizes, weights, added, quantizers, kept)
        y = y.reshape(*x.shape[:-1], self.out_features)
        return (y, biases) if self.return_bias else y

    def _expert_quantizers(self) -> list[LinearQuantizers]:
        if not self.fp8:
            return [LinearQuantizers()] * self.num_gemms
        forward, backward = self.quantizers["scaling_fwd"], self.quantizers["scaling_bwd"]
        override = self.fp8_meta["recipe"].backward_override
        return [
            LinearQuantizers(
                input=forward[3 * i],
                weight=forward[3 * i + 1],
                grad_output=backward[2 * i],
                backward_override=override,
            )
            for i in range(self.num_gemms)
        ]

    def _calibrate(self, x: Tensor, sizes: list[int], weights: list[Tensor]) -> None:
        forward = self.quantizers["scaling_fwd"]
        for i, part in enumerate(torch.split(x, [*sizes, x.shape[0] - sum(sizes)])[:-1]):
            calibrate((part, forward[3 * i]), (weights[i], forward[3 * i + 1]))


def fold_experts(slots: list[Slot], experts: int) -> list[Slot]:
    """Slots of equal role at the same place of every expert, as one slot with copies."""
    folded = []
    for direction in dict.fromkeys(slot.direction for slot in slots):
        own = [slot for slot in slots if slot.direction is direction]
        width = len(own) // experts
        columns = [own[i::width] for i in range(width)]
        if any(slot.role != column[0].role for column in columns for slot in column):
            return slots
        for column in columns:
            names = tuple(name for slot in column for name in slot.parameters)
            folded.append(replace(column[0], copies=experts, parameters=names))
    return folded
