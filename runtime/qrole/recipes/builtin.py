"""TransformerEngine's built-in recipes.

Defaults that TransformerEngine takes from the environment are read when a recipe is built. The
fields `fp8_quant_*` and `fp4_quant_*` are no constructor keywords there either.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import field
from typing import Any

from qrole.errors import ConfigError
from qrole.recipes.base import (
    Format,
    IgnoredSettingWarning,
    MMParams,
    QParams,
    Recipe,
    backward_override,
    env,
    env_flag,
    recipe_class,
)

__all__ = [
    "DelayedScaling",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "MXFP8BlockScaling",
    "NVFP4BlockScaling",
]

_SCOPES = ("none", "weights", "activations", "all")


@recipe_class
class DelayedScaling(Recipe):
    """FP8 per tensor with scales from the amax of earlier steps.

    Attributes:
        margin: The scale is divided by 2**margin.
        fp8_format: HYBRID or E4M3.
        amax_history_len: Steps that the history holds, >= 1.
        amax_compute_algo: `max`, `most_recent`, or a callable `history -> amax`.
        scaling_factor_compute_algo: A callable `(amax, scale, fp8_max, recipe) -> scale`; None is
            fp8_max / amax / 2**margin.
        reduce_amax: Take the maximum over the ranks of the autocast's group.
        fp8_dpa: As in `Recipe`.
        fp8_mha: As in `Recipe`.
        backward_override: None only.
    """

    kind = "delayed"

    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: str | Callable[..., Any] = "max"
    scaling_factor_compute_algo: Callable[..., Any] | None = None
    reduce_amax: bool = True
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = field(default_factory=backward_override)

    def __post_init__(self) -> None:
        self.check_common()
        self.check_choice("backward_override", (None,))
        if not callable(self.amax_compute_algo):
            self.check_choice("amax_compute_algo", ("max", "most_recent"))
        if self.amax_history_len < 1:
            raise ConfigError(
                f"DelayedScaling(amax_history_len={self.amax_history_len})",
                expected="at least one step",
                hint="1 uses the amax of the step before",
            )


@recipe_class
class Float8CurrentScaling(Recipe):
    """FP8 per tensor with the scale of each tensor's own amax.

    Attributes:
        use_power_2_scales: Reaches boundary slots only; input, weight and grad_output follow the
            environment's NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES, which is its default as well.
        fp8_format: HYBRID or E4M3.
        fp8_gemm_fprop: Options of the GEMM; likewise dgrad and wgrad.
        fp8_dpa: As in `Recipe`.
        fp8_mha: As in `Recipe`.
        backward_override: As in `Recipe`.
    """

    kind = "float8_current_scaling"

    use_power_2_scales: bool = field(
        default_factory=env_flag("NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES")
    )
    fp8_format: Format = Format.HYBRID
    fp8_gemm_fprop: MMParams = MMParams(use_split_accumulator=False)
    fp8_gemm_dgrad: MMParams = MMParams()
    fp8_gemm_wgrad: MMParams = MMParams()
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = field(default_factory=backward_override)
    fp8_quant_fwd_inp: QParams = field(init=False)
    fp8_quant_fwd_weight: QParams = field(init=False)
    fp8_quant_bwd_grad: QParams = field(init=False)

    def __post_init__(self) -> None:
        self.check_common()
        pow2 = env_flag("NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES")()
        if self.use_power_2_scales != pow2:
            _warn_ineffective(
                "Float8CurrentScaling",
                "use_power_2_scales",
                "NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES",
            )
        options = QParams(power_2_scale=pow2)
        self.fp8_quant_fwd_inp = self.fp8_quant_fwd_weight = self.fp8_quant_bwd_grad = options


@recipe_class
class MXFP8BlockScaling(Recipe):
    """MXFP8.

    Attributes:
        margin: Accepted as TransformerEngine does; has no meaning.
        fp8_format: E4M3, or HYBRID for E5M2 gradients.
        enable_2d_quantization: 32x32 blocks for weights of linear layers.
        fp8_dpa: As in `Recipe`.
        fp8_mha: As in `Recipe`.
        backward_override: As in `Recipe`.
    """

    kind = "mxfp8"

    margin: int = 0
    fp8_format: Format = Format.E4M3
    enable_2d_quantization: bool = False
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = field(default_factory=backward_override)

    def __post_init__(self) -> None:
        self.check_common()


@recipe_class
class Float8BlockScaling(Recipe):
    """FP8 in blocks of 128.

    Attributes:
        use_f32_scales: Not read; scales are powers of two unless the environment's
            NVTE_FP8_BLOCK_SCALING_FP32_SCALES is 1, which is its default as well.
        fp8_format: E4M3, or HYBRID for E5M2 gradients.
        x_block_scaling_dim: Blocks of inputs: 1 is 1x128, 2 is 128x128.
        w_block_scaling_dim: Blocks of weights.
        grad_block_scaling_dim: Blocks of gradients. No two may be 2: no GEMM takes 2D by 2D.
        fp8_gemm_fprop: Options of the GEMM, split accumulation required; likewise dgrad, wgrad.
        fp8_dpa: False only.
        fp8_mha: False only.
        backward_override: As in `Recipe`.
    """

    kind = "float8_block_scaling"

    use_f32_scales: bool = field(default_factory=env_flag("NVTE_FP8_BLOCK_SCALING_FP32_SCALES"))
    fp8_format: Format = Format.E4M3
    x_block_scaling_dim: int = 1
    w_block_scaling_dim: int = 2
    grad_block_scaling_dim: int = 1
    fp8_gemm_fprop: MMParams = MMParams()
    fp8_gemm_dgrad: MMParams = MMParams()
    fp8_gemm_wgrad: MMParams = MMParams()
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = field(default_factory=backward_override)
    fp8_quant_fwd_inp: QParams = field(init=False)
    fp8_quant_fwd_weight: QParams = field(init=False)
    fp8_quant_bwd_grad: QParams = field(init=False)

    def __post_init__(self) -> None:
        self.check_common()
        self._check_blocks()
        for flag in ("fp8_dpa", "fp8_mha"):
            self.check_choice(flag, (False,))
        for gemm in ("fp8_gemm_fprop", "fp8_gemm_dgrad", "fp8_gemm_wgrad"):
            self.check_choice(gemm, (MMParams(use_split_accumulator=True),))
        fp32 = env_flag("NVTE_FP8_BLOCK_SCALING_FP32_SCALES")()
        if self.use_f32_scales != fp32:
            _warn_ineffective(
                "Float8BlockScaling", "use_f32_scales", "NVTE_FP8_BLOCK_SCALING_FP32_SCALES"
            )
        options = QParams(power_2_scale=not fp32)
        self.fp8_quant_fwd_inp = self.fp8_quant_fwd_weight = self.fp8_quant_bwd_grad = options

    def _check_blocks(self) -> None:
        names = ("x_block_scaling_dim", "w_block_scaling_dim", "grad_block_scaling_dim")
        for name in names:
            self.check_choice(name, (1, 2))
        square = [name for name in names if getattr(self, name) == 2]
        if len(square) > 1:
            raise ConfigError(
                f"Float8BlockScaling with {' and '.join(f'{n}=2' for n in square)}",
                expected="at most one 2D operand: no GEMM multiplies 2D by 2D blocks",
                hint="keep w_block_scaling_dim=2 and the others 1",
            )


@recipe_class
class NVFP4BlockScaling(Recipe):
    """NVFP4 training: RHT for wgrad, stochastically rounded gradients, 2D weight scales.

    Attributes:
        disable_rht: No Hadamard transform; env NVTE_NVFP4_DISABLE_RHT.
        disable_stochastic_rounding: env NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING.
        disable_2d_quantization: 1x16 blocks for weights; env NVTE_NVFP4_DISABLE_2D_QUANTIZATION.
        row_scaled_activation: One amax per row of forward activations; needs disable_rht; env
            NVTE_NVFP4_ROW_SCALED_ACTIVATION.
        nvfp4_4over6: Which forward tensors choose between 4 and 6 per block: `none`, `weights`,
            `activations`, `all`; activations need disable_rht; env NVTE_NVFP4_4OVER6.
        nvfp4_4over6_e4m3_use_256: Which of those have 256 as the largest block scale rather than
            448; env NVTE_NVFP4_4OVER6_E4M3_USE_256.
        nvfp4_4over6_err_mode: `MAE` or `MSE`; env NVTE_NVFP4_4OVER6_ERR_MODE.
        fp4_format: E2M1 only.
        fp8_format: E4M3 only, of the block scales.
        fp8_dpa: As in `Recipe`.
        fp8_mha: As in `Recipe`.
        backward_override: As in `Recipe`.
    """

    kind = "nvfp4"

    disable_rht: bool = field(default_factory=env_flag("NVTE_NVFP4_DISABLE_RHT"))
    disable_stochastic_rounding: bool = field(
        default_factory=env_flag("NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING")
    )
    disable_2d_quantization: bool = field(
        default_factory=env_flag("NVTE_NVFP4_DISABLE_2D_QUANTIZATION")
    )
    row_scaled_activation: bool = field(
        default_factory=env_flag("NVTE_NVFP4_ROW_SCALED_ACTIVATION")
    )
    nvfp4_4over6: str = field(default_factory=env("NVTE_NVFP4_4OVER6", "none"))
    nvfp4_4over6_e4m3_use_256: str = field(
        default_factory=env("NVTE_NVFP4_4OVER6_E4M3_USE_256", "all")
    )
    nvfp4_4over6_err_mode: str = field(
        default_factory=lambda: os.environ.get("NVTE_NVFP4_4OVER6_ERR_MODE", "MAE").upper()
    )
    fp4_format: Format = Format.E2M1
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = field(default_factory=backward_override)
    fp4_quant_fwd_inp: QParams = field(init=False)
    fp4_quant_fwd_weight: QParams = field(init=False)
    fp4_quant_bwd_grad: QParams = field(init=False)

    def __post_init__(self) -> None:
        self.check_common()
        self.check_choice("fp4_format", (Format.E2M1,))
        self.check_choice("fp8_format", (Format.E4M3,))
        self.check_choice("nvfp4_4over6", _SCOPES)
        self.check_choice("nvfp4_4over6_e4m3_use_256", _SCOPES)
        self.check_choice("nvfp4_4over6_err_mode", ("MAE", "MSE"))
        rht = not self.disable_rht
        self.fp4_quant_fwd_inp = QParams(random_hadamard_transform=rht)
        self.fp4_quant_fwd_weight = QParams(fp4_2d_quantization=not self.disable_2d_quantization)
        self.fp4_quant_bwd_grad = QParams(
            random_hadamard_transform=rht,
            stochastic_rounding=not self.disable_stochastic_rounding,
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("disable_") and "fp4_quant_bwd_grad" in vars(self):
            warnings.warn(
                f"setting {name} after NVFP4BlockScaling was built changes nothing; "
                "pass it to the constructor",
                IgnoredSettingWarning,
                stacklevel=2,
            )
        super().__setattr__(name, value)


def _warn_ineffective(recipe: str, setting: str, variable: str) -> None:
    warnings.warn(
        f"{recipe}({setting}=...) does not reach input, weight and grad_output: TransformerEngine "
        f"takes their scales' rule from the environment variable {variable}",
        IgnoredSettingWarning,
        stacklevel=5,
    )
