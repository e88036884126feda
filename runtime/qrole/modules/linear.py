"""Linear: one weight, three GEMMs, five slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

import torch
from torch import Tensor, nn
from typing_extensions import override

from qrole.modules.base import QuantizedModule
from qrole.modules.keywords import LinearKeywords, check_keywords
from qrole.modules.linear_function import LinearQuantizers, calibrate, quantized_linear
from qrole.modules.parameters import Init, ParameterSplit, default_init, empty_parameter
from qrole.modules.slots import SlotFacts
from qrole.roles import QuantizerRole

__all__ = ["Linear", "LinearModule"]


class LinearModule(QuantizedModule):
    """What `Linear` and `LayerNormLinear` share: parameters, slots, and the linear layer itself.

    Slots: forward input, weight, output; backward grad_output, grad_input. Output and grad_input
    are read only where `fp8_output` or `fp8_grad` asks for them, which whoever names their role
    is taken to do.

    Attributes:
        in_features: Columns of the weight.
        out_features: Rows of the weight.
        weight_names: The parameters that make up the weight.
        bias_names: Those of the bias; parameters only where `use_bias`.
        use_bias: There is a bias.
        return_bias: It is returned instead of added.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        init_method: Init | None,
        bias: bool,
        return_bias: bool,
        params_dtype: torch.dtype | None,
        parameters_split: Sequence[str] | Mapping[str, int] | None,
        device: torch.device | str,
        name: str | None,
    ) -> None:
        super().__init__(name)
        self.in_features = in_features
        self.out_features = out_features
        self.use_bias = bias
        self.return_bias = return_bias
        self.init_method = init_method or default_init
        split = ParameterSplit.of(parameters_split, out_features)
        self.weight_names = split.weights
        self.bias_names = split.biases
        for parameter, rows in zip(split.weights, split.sizes, strict=True):
            weight = empty_parameter(rows, in_features, device=device, dtype=params_dtype)
            self.register_parameter(parameter, weight)
        for parameter, rows in zip(split.biases, split.sizes, strict=True):
            made = empty_parameter(rows, device=device, dtype=params_dtype) if bias else None
            self.register_parameter(parameter, made)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Fills the parameters with initial values; those on the meta device have none."""
        for name in self.weight_names:
            self.init_method(self.get_parameter(name))
        if self.use_bias:
            for name in self.bias_names:
                nn.init.zeros_(self.get_parameter(name))

    @property
    @override
    def slot_facts(self) -> tuple[list[SlotFacts], list[SlotFacts]]:
        shape = (self.out_features, self.in_features)
        forward = [
            SlotFacts("input"),
            SlotFacts("weight", shape=shape, parameters=self.weight_names),
            SlotFacts("output", consumed=self.output_quantizer_role is not None),
        ]
        backward = [
            SlotFacts("grad_output"),
            SlotFacts("grad_input", consumed=self.grad_input_quantizer_role is not None),
        ]
        return forward, backward

    @override
    def get_quantizer_roles(
        self, *, fwd: bool, num_quantizers: int
    ) -> list[QuantizerRole | None] | None:
        if fwd:
            roles = [
                QuantizerRole("linear", "input", self.name),
                QuantizerRole("linear", "weight", self.name),
                self.output_quantizer_role,
            ]
        else:
            roles = [
                QuantizerRole("linear", "grad_output", self.name),
                self.grad_input_quantizer_role,
            ]
        return [roles[i % len(roles)] for i in range(num_quantizers)]

    def _apply_linear(
        self, x: Tensor, is_first_microbatch: bool | None, fp8_output: bool, fp8_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The layer's output, and the bias where it is to be returned instead of added."""
        self._warn_of_missing_roles(fp8_output, fp8_grad)
        weight = _joined([self.get_parameter(name) for name in self.weight_names]).to(x.dtype)
        bias = None
        if self.use_bias:
            bias = _joined([self.get_parameter(name) for name in self.bias_names]).to(x.dtype)
        quantizers = self._linear_quantizers(fp8_output, fp8_grad)
        if self.fp8_calibration and not self.fp8:
            forward = self.quantizers["scaling_fwd"]
            calibrate((x, forward[0]), (weight, forward[1]))
        kept = None
        if quantizers.weight is not None:
            kept = self._kept_weight("weight", weight, quantizers.weight, is_first_microbatch)
        added = None if self.return_bias else bias
        y = quantized_linear(x, weight, added, quantizers, weight_operand=kept)
        return y, bias if self.return_bias else None

    def _linear_quantizers(self, fp8_output: bool, fp8_grad: bool) -> LinearQuantizers:
        if not self.fp8:
            return LinearQuantizers()
        forward, backward = self.quantizers["scaling_fwd"], self.quantizers["scaling_bwd"]
        return LinearQuantizers(
            input=forward[0],
            weight=forward[1],
            output=forward[2] if fp8_output else None,
            grad_output=backward[0],
            grad_input=backward[1] if fp8_grad else None,
            backward_override=self.fp8_meta["recipe"].backward_override,
        )


def _joined(parts: list[nn.Parameter]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class Linear(LinearModule):
    """`y = x W^T + b`.

    Args:
        in_features: Size of each input row.
        out_features: Size of each output row.
        init_method: Fills the weight in place; normal with deviation 0.023 where None.
        bias: Learn a bias.
        return_bias: Return the bias as a second result instead of adding it.
        params_dtype: Dtype of the parameters; torch's default where None.
        parameters_split: Make the weight (and bias) of several parameters along its rows: names
            of equal parts, or names with their sizes.
        device: Of the parameters; `cuda` is the default device on a machine without CUDA.
        name: Goes into the roles.
        keywords: TransformerEngine's further keywords, of no effect here: `keywords.py`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        init_method: Init | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parameters_split: Sequence[str] | Mapping[str, int] | None = None,
        device: torch.device | str = "cuda",
        name: str | None = None,
        **keywords: Unpack[LinearKeywords],
    ) -> None:
        check_keywords("Linear", LinearKeywords, keywords)
        super().__init__(
            in_features,
            out_features,
            init_method=init_method,
            bias=bias,
            return_bias=return_bias,
            params_dtype=params_dtype,
            parameters_split=parameters_split,
            device=device,
            name=name,
        )
        self.reset_parameters()

    def forward(
        self,
        inp: Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Applies the layer.

        Args:
            inp: (..., in_features).
            is_first_microbatch: True quantizes the weight and keeps it, False uses the one kept,
                None quantizes it for this call alone.
            fp8_output: The output is quantized by its slot's quantizer for the next module.
            fp8_grad: The input's gradient likewise for the previous one.

        Returns:
            (..., out_features), with `return_bias` followed by the bias.
        """
        x = self._prepare(inp)
        y, bias = self._apply_linear(x, is_first_microbatch, fp8_output, fp8_grad)
        return (y, bias) if self.return_bias else y
