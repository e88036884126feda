"""States of the built-in recipes that keep nothing between steps."""

from __future__ import annotations

from typing_extensions import override

from qrole.quantizers.base import Quantizer
from qrole.quantizers.fp8 import Float8CurrentScalingQuantizer
from qrole.quantizers.fp8_block import Float8BlockQuantizer
from qrole.quantizers.mxfp8 import MXFP8Quantizer
from qrole.quantizers.nvfp4 import NVFP4Quantizer
from qrole.recipes import (
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    QParams,
)
from qrole.state.base import RecipeState, fp8_dtype

__all__ = [
    "Float8BlockScalingRecipeState",
    "Float8CurrentScalingRecipeState",
    "MXFP8BlockScalingRecipeState",
    "NVFP4BlockScalingRecipeState",
]


class Float8CurrentScalingRecipeState(RecipeState):
    """E4M3 forward, E5M2 backward with HYBRID.

    Slots whose role says input, weight or grad_output take the recipe's `fp8_quant_*` options; all
    others `use_power_2_scales`.
    """

    recipe: Float8CurrentScaling

    @override
    def make_quantizers(self) -> list[Quantizer]:
        return [self._make(i) for i in range(self.num_quantizers)]

    def _make(self, index: int) -> Quantizer:
        recipe = self.recipe
        options = {
            "input": recipe.fp8_quant_fwd_inp,
            "weight": recipe.fp8_quant_fwd_weight,
            "grad_output": recipe.fp8_quant_bwd_grad,
        }.get(self.slot_role(index).tensor_type, QParams(power_2_scale=recipe.use_power_2_scales))
        return Float8CurrentScalingQuantizer(
            fp8_dtype(recipe.fp8_format, forward=self.forward),
            device=self.device,
            force_pow_2_scales=options.power_2_scale,
            amax_epsilon=options.amax_epsilon,
        )


class MXFP8BlockScalingRecipeState(RecipeState):
    """E4M3; E5M2 backward with HYBRID; 32x32 blocks for weights where the recipe enables them."""

    recipe: MXFP8BlockScaling

    @override
    def make_quantizers(self) -> list[Quantizer]:
        dtype = fp8_dtype(self.recipe.fp8_format, forward=self.forward)
        return [
            MXFP8Quantizer(dtype, with_2d_quantization=self._square(i))
            for i in range(self.num_quantizers)
        ]

    def _square(self, index: int) -> bool:
        role = self.slot_role(index)
        linear = role.module_type in ("linear", "grouped_linear")
        weight = linear and role.tensor_type == "weight"
        return self.forward and self.recipe.enable_2d_quantization and weight


class Float8BlockScalingRecipeState(RecipeState):
    """Blocks by tensor type: weights, other forward tensors, gradients."""

    recipe: Float8BlockScaling

    @override
    def make_quantizers(self) -> list[Quantizer]:
        return [self._make(self.slot_tensor_type(i)) for i in range(self.num_quantizers)]

    def _make(self, tensor_type: str) -> Quantizer:
        recipe, gradient = self.recipe, tensor_type in ("grad_output", "grad_input")
        if tensor_type == "weight":
            options, dim = recipe.fp8_quant_fwd_weight, recipe.w_block_scaling_dim
        elif gradient:
            options, dim = recipe.fp8_quant_bwd_grad, recipe.grad_block_scaling_dim
        else:
            options, dim = recipe.fp8_quant_fwd_inp, recipe.x_block_scaling_dim
        return Float8BlockQuantizer(
            fp8_dtype(recipe.fp8_format, forward=not gradient),
            rowwise=True,
            columnwise=True,
            amax_epsilon=options.amax_epsilon,
            force_pow_2_scales=options.power_2_scale,
            block_scaling_dim=dim,
        )


class NVFP4BlockScalingRecipeState(RecipeState):
    """RHT for activations and gradients, stochastic rounding for gradients, 2D weights.

    Raises (from `make_quantizers`):
        ConfigError: 4over6 for tensors that have RHT.
    """

    recipe: NVFP4BlockScaling

    @override
    def make_quantizers(self) -> list[Quantizer]:
        return [self._make(self.slot_tensor_type(i)) for i in range(self.num_quantizers)]

    def _make(self, tensor_type: str) -> Quantizer:
        recipe = self.recipe
        gradient = tensor_type in ("grad_output", "grad_input")
        if tensor_type == "weight":
            options, scope = recipe.fp4_quant_fwd_weight, "weights"
        elif gradient:
            options, scope = recipe.fp4_quant_bwd_grad, ""
        else:
            options, scope = recipe.fp4_quant_fwd_inp, "activations"
        four_over_six = bool(scope) and recipe.nvfp4_4over6 in (scope, "all")
        small = four_over_six and recipe.nvfp4_4over6_e4m3_use_256 in (scope, "all")
        quantizer = NVFP4Quantizer(
            with_rht=options.random_hadamard_transform,
            with_post_rht_amax=options.random_hadamard_transform,
            with_2d_quantization=options.fp4_2d_quantization,
            stochastic_rounding=options.stochastic_rounding,
            row_scaled_nvfp4=scope == "activations" and recipe.row_scaled_activation,
            nvfp4_use_4over6=four_over_six,
            nvfp4_e4m3_max=256 if small else 448,
            nvfp4_4over6_err_mode=recipe.nvfp4_4over6_err_mode,
        )
        if four_over_six:
            quantizer.check()
        return quantizer
