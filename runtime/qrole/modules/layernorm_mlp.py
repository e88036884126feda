"""LayerNormMLP: a norm, a linear layer, an activation, a linear layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import torch
from torch import Tensor, nn
from typing_extensions import override

from qrole.errors import ConfigError
from qrole.modules.activation import activation as activation_named
from qrole.modules.base import QuantizedModule
from qrole.modules.keywords import LayerNormMLPKeywords, check_keywords
from qrole.modules.linear_function import LinearQuantizers, calibrate, quantized_linear
from qrole.modules.normalization import check_normalization, normalize
from qrole.modules.parameters import Init, default_init, empty_parameter
from qrole.modules.slots import SlotFacts
from qrole.roles import QuantizerRole

__all__ = ["LayerNormMLP"]

_LAYERS = ("fc1", "fc2")


class LayerNormMLP(QuantizedModule):
    """`y = act(norm(x) W1^T + b1) W2^T + b2`.

    Slots: forward input, weight, output of fc1, then of fc2; backward grad_output, grad_input of
    fc1, then of fc2. Tensors between the two layers bear the role of their reader. The outputs of
    both layers and the input gradients of both are built and never read, as in TransformerEngine,
    which also refuses `backward_override` here.

    Args:
        hidden_size: Size of input and output rows.
        ffn_hidden_size: Size of the rows between the layers.
        eps: Added to the variance.
        return_bias: Return fc2's bias as a second result instead of adding it.
        init_method: Fills fc1's weight in place; normal with deviation 0.023 where None.
        bias: Learn biases.
        normalization: `LayerNorm` or `RMSNorm`.
        activation: One of `activation.ACTIVATIONS`; gated ones double fc1's rows.
        activation_params: Parameters of `clamped_swiglu`.
        output_layer_init_method: As `init_method`, for fc2.
        params_dtype: Dtype of the parameters; torch's default where None.
        return_layernorm_output: Return the norm's output as a last result.
        return_layernorm_output_gathered: Return it gathered; the same on one device.
        zero_centered_gamma: Gamma is stored as its difference to 1.
        device: Of the parameters; `cuda` is the default device on a machine without CUDA.
        name: Goes into the roles, with `.fc1` and `.fc2` behind it.
        keywords: TransformerEngine's further keywords, of no effect here: `keywords.py`.
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        *,
        return_bias: bool = False,
        init_method: Init | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        activation_params: Mapping[str, float] | None = None,
        output_layer_init_method: Init | None = None,
        params_dtype: torch.dtype | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        zero_centered_gamma: bool = False,
        device: torch.device | str = "cuda",
        name: str | None = None,
        **keywords: Unpack[LayerNormMLPKeywords],
    ) -> None:
        check_keywords("LayerNormMLP", LayerNormMLPKeywords, keywords)
        super().__init__(name)
        self.eps = eps
        self.use_bias = bias
        self.return_bias = return_bias
        self.normalization = check_normalization(normalization)
        self.activation = activation_named(activation, activation_params)
        self.return_layernorm_output = return_layernorm_output
        self.return_layernorm_output_gathered = return_layernorm_output_gathered
        self.zero_centered_gamma = zero_centered_gamma
        self.init_methods = (init_method or default_init, output_layer_init_method or default_init)

        def parameter(*shape: int) -> nn.Parameter:
            return empty_parameter(*shape, device=device, dtype=params_dtype)

        rows = ffn_hidden_size * (2 if self.activation.gated else 1)
        self.layer_norm_weight = parameter(hidden_size)
        self.layer_norm_bias = parameter(hidden_size) if normalization == "LayerNorm" else None
        self.fc1_weight = parameter(rows, hidden_size)
        self.fc1_bias = parameter(rows) if bias else None
        self.fc2_weight = parameter(hidden_size, ffn_hidden_size)
        self.fc2_bias = parameter(hidden_size) if bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Fills the parameters with initial values; those on the meta device have none."""
        nn.init.constant_(self.layer_norm_weight, 0.0 if self.zero_centered_gamma else 1.0)
        for weight, init in zip((self.fc1_weight, self.fc2_weight), self.init_methods, strict=True):
            init(weight)
        for bias in (self.layer_norm_bias, self.fc1_bias, self.fc2_bias):
            if bias is not None:
                nn.init.zeros_(bias)

    @property
    @override
    def slot_facts(self) -> tuple[list[SlotFacts], list[SlotFacts]]:
        forward, backward = [], []
        for layer in _LAYERS:
            parameter = f"{layer}_weight"
            shape = tuple(self.get_parameter(parameter).shape)
            forward += [
                SlotFacts("input", layer),
                SlotFacts("weight", layer, shape=shape, parameters=(parameter,)),
                SlotFacts("output", layer, consumed=False),
            ]
            backward += [
                SlotFacts("grad_output", layer),
                SlotFacts("grad_input", layer, consumed=False),
            ]
        return forward, backward

    @override
    def get_quantizer_roles(
        self, *, fwd: bool, num_quantizers: int
    ) -> list[QuantizerRole | None] | None:
        fc1, fc2 = (f"{self.name}.{layer}" if self.name else layer for layer in _LAYERS)
        if fwd:
            roles = [
                QuantizerRole("linear", "input", fc1),
                QuantizerRole("linear", "weight", fc1),
                QuantizerRole("linear", "input", fc2),
                QuantizerRole("linear", "input", fc2),
                QuantizerRole("linear", "weight", fc2),
                self.output_quantizer_role,
            ]
        else:
            roles = [
                QuantizerRole("linear", "grad_output", fc1),
                self.grad_input_quantizer_role,
                QuantizerRole("linear", "grad_output", fc2),
                QuantizerRole("linear", "grad_output", fc1),
            ]
        return [roles[i % len(roles)] for i in range(num_quantizers)]

    def forward(
        self, inp: Tensor, is_first_microbatch: bool | None = None
    ) -> Tensor | tuple[Tensor | None, ...]:
        """Applies norm and MLP.

        Args:
            inp: (..., hidden_size).
            is_first_microbatch: As in `Linear`.

        Returns:
            (..., hidden_size); followed by fc2's bias with `return_bias`, and by the norm's output
            with `return_layernorm_output`.

        Raises:
            ConfigError: The recipe has a `backward_override`.
        """
        x = self._prepare(inp, num_gemms=2)
        self._refuse_override()
        normed = normalize(
            x,
            self.layer_norm_weight,
            self.layer_norm_bias,
            self.eps,
            kind=self.normalization,
            zero_centered_gamma=self.zero_centered_gamma,
        )
        bias1, bias2 = (
            None if b is None else b.to(x.dtype) for b in (self.fc1_bias, self.fc2_bias)
        )
        hidden = self._layer(0, normed, self.fc1_weight, bias1, is_first_microbatch)
        hidden = self.activation(hidden)
        added = None if self.return_bias else bias2
        y = self._layer(1, hidden, self.fc2_weight, added, is_first_microbatch)
        results: tuple[Tensor | None, ...] = (y,)
        if self.return_bias:
            results += (bias2,)
        if self.return_layernorm_output:
            results += (normed,)
        return results if len(results) > 1 else y

    def _refuse_override(self) -> None:
        override = self.fp8_meta["recipe"].backward_override if self.fp8 else None
        if override is not None:
            raise ConfigError(
                f"a recipe with backward_override={override!r} and LayerNormMLP {self.name!r}",
                expected="backward_override=None: TransformerEngine's LayerNormMLP has no other",
                hint="replace LayerNormMLP by LayerNormLinear and Linear",
            )

    def _layer(
        self, index: int, x: Tensor, weight: Tensor, bias: Tensor | None, first: bool | None
    ) -> Tensor:
        """fc1 (index 0) or fc2 with the quantizers of its slots."""
        weight = weight.to(x.dtype)
        if not (self.fp8 or self.fp8_calibration):
            return quantized_linear(x, weight, bias)
        inputs, weights = self.quantizers["scaling_fwd"][3 * index : 3 * index + 2]
        if not self.fp8:
            calibrate((x, inputs), (weight, weights))
            return quantized_linear(x, weight, bias)
        grads = self.quantizers["scaling_bwd"][2 * index]
        kept = self._kept_weight(_LAYERS[index], weight, weights, first)
        quantizers = LinearQuantizers(inputs, weights, grad_output=grads)
        return quantized_linear(x, weight, bias, quantizers, weight_operand=kept)
