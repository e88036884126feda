"""LayerNormLinear: a norm, then a linear layer on its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from qrole.modules.keywords import LayerNormLinearKeywords, check_keywords
from qrole.modules.linear import LinearModule
from qrole.modules.normalization import check_normalization, normalize
from qrole.modules.parameters import Init, empty_parameter

__all__ = ["LayerNormLinear"]


class LayerNormLinear(LinearModule):
    """`y = norm(x) W^T + b`; the norm's output is rounded to x's dtype before it is quantized.

    Args:
        in_features: Size of each input row.
        out_features: Size of each output row.
        eps: Added to the variance.
        init_method: As in `Linear`.
        bias: As in `Linear`.
        normalization: `LayerNorm` or `RMSNorm`.
        return_bias: As in `Linear`.
        params_dtype: As in `Linear`.
        return_layernorm_output: Return the norm's output as a last result.
        return_layernorm_output_gathered: Return it gathered; the same on one device.
        parameters_split: As in `Linear`.
        zero_centered_gamma: Gamma is stored as its difference to 1.
        device: As in `Linear`.
        name: Goes into the roles.
        keywords: TransformerEngine's further keywords, of no effect here: `keywords.py`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        *,
        init_method: Init | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        parameters_split: Sequence[str] | Mapping[str, int] | None = None,
        zero_centered_gamma: bool = False,
        device: torch.device | str = "cuda",
        name: str | None = None,
        **keywords: Unpack[LayerNormLinearKeywords],
    ) -> None:
        check_keywords("LayerNormLinear", LayerNormLinearKeywords, keywords)
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
        self.eps = eps
        self.normalization = check_normalization(normalization)
        self.zero_centered_gamma = zero_centered_gamma
        self.return_layernorm_output = return_layernorm_output
        self.return_layernorm_output_gathered = return_layernorm_output_gathered
        self.layer_norm_weight = empty_parameter(in_features, device=device, dtype=params_dtype)
        self.layer_norm_bias = (
            empty_parameter(in_features, device=device, dtype=params_dtype)
            if normalization == "LayerNorm"
            else None
        )
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Fills the parameters with initial values; those on the meta device have none."""
        super().reset_parameters()
        nn.init.constant_(self.layer_norm_weight, 0.0 if self.zero_centered_gamma else 1.0)
        if self.layer_norm_bias is not None:
            nn.init.zeros_(self.layer_norm_bias)

    def forward(
        self,
        inp: Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> Tensor | tuple[Tensor | None, ...]:
        """Applies norm and layer; arguments as in `Linear`.

        Returns:
            (..., out_features); followed by the bias with `return_bias`, and by the norm's output
            with `return_layernorm_output`.
        """
        x = self._prepare(inp)
        normed = normalize(
            x,
            self.layer_norm_weight,
            self.layer_norm_bias,
            self.eps,
            kind=self.normalization,
            zero_centered_gamma=self.zero_centered_gamma,
        )
        y, bias = self._apply_linear(normed, is_first_microbatch, fp8_output, fp8_grad)
        results: tuple[Tensor | None, ...] = (y,)
        if self.return_bias:
            results += (bias,)
        if self.return_layernorm_output:
            results += (normed,)
        return results if len(results) > 1 else y
