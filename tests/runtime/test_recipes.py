"""Recipes: defaults, environment, validation, and what TransformerEngine drops silently."""

import pytest

from qrole.errors import ConfigError
from qrole.quantizers import IdentityQuantizer
from qrole.recipes import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
    IgnoredSettingWarning,
    MMParams,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    QParams,
    get_align_size_for_quantization,
)

BUILTIN = (
    DelayedScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    Float8BlockScaling,
    NVFP4BlockScaling,
)


def factory(role):
    return IdentityQuantizer()


def test_format_ranges():
    ranges = {f.name: tuple(f.value) for f in Format}
    assert ranges == {
        "E2M1": (6, 6), "E4M3": (448, 448), "E5M2": (57344, 57344), "HYBRID": (448, 57344),
    }  # fmt: skip
    assert Format.HYBRID.value.max_bwd == 57344


def test_defaults_of_delayed_scaling():
    recipe = DelayedScaling()
    assert (recipe.margin, recipe.fp8_format, recipe.amax_history_len) == (0, Format.HYBRID, 1024)
    assert (recipe.amax_compute_algo, recipe.reduce_amax) == ("max", True)
    assert (recipe.fp8_dpa, recipe.fp8_mha, recipe.backward_override) == (False, False, None)


def test_defaults_of_current_scaling():
    recipe = Float8CurrentScaling()
    assert recipe.fp8_format is Format.HYBRID
    assert recipe.fp8_quant_fwd_inp == QParams() == recipe.fp8_quant_bwd_grad
    assert recipe.fp8_gemm_fprop == MMParams(use_split_accumulator=False)
    assert recipe.fp8_gemm_dgrad == recipe.fp8_gemm_wgrad == MMParams(use_split_accumulator=True)


def test_defaults_of_mxfp8():
    recipe = MXFP8BlockScaling()
    assert (recipe.fp8_format, recipe.enable_2d_quantization) == (Format.E4M3, False)


def test_defaults_of_block_scaling():
    recipe = Float8BlockScaling()
    dims = (recipe.x_block_scaling_dim, recipe.w_block_scaling_dim, recipe.grad_block_scaling_dim)
    assert (dims, recipe.fp8_format) == ((1, 2, 1), Format.E4M3)
    assert recipe.fp8_quant_fwd_weight == QParams(power_2_scale=True)


def test_defaults_of_nvfp4():
    recipe = NVFP4BlockScaling()
    assert recipe.fp4_quant_fwd_inp == QParams(random_hadamard_transform=True)
    assert recipe.fp4_quant_fwd_weight == QParams(fp4_2d_quantization=True)
    assert recipe.fp4_quant_bwd_grad == QParams(
        random_hadamard_transform=True, stochastic_rounding=True
    )
    assert (recipe.nvfp4_4over6, recipe.nvfp4_4over6_e4m3_use_256) == ("none", "all")
    assert (recipe.nvfp4_4over6_err_mode, recipe.row_scaled_activation) == ("MAE", False)


def test_defaults_of_a_custom_recipe():
    recipe = CustomRecipe(factory)
    assert (recipe.fp8_format, recipe.fp8_dpa, recipe.fp8_mha) == (Format.HYBRID, False, False)
    assert (recipe.backward_override, recipe.quantization_alignment) == (None, 128)


ENVIRONMENT = [
    (Float8CurrentScaling, "NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES", "1",
     lambda r: r.use_power_2_scales and r.fp8_quant_fwd_inp.power_2_scale),
    (Float8BlockScaling, "NVTE_FP8_BLOCK_SCALING_FP32_SCALES", "1",
     lambda r: r.use_f32_scales and not r.fp8_quant_fwd_weight.power_2_scale),
    (NVFP4BlockScaling, "NVTE_NVFP4_DISABLE_RHT", "1",
     lambda r: not r.fp4_quant_fwd_inp.random_hadamard_transform),
    (NVFP4BlockScaling, "NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING", "1",
     lambda r: not r.fp4_quant_bwd_grad.stochastic_rounding),
    (NVFP4BlockScaling, "NVTE_NVFP4_DISABLE_2D_QUANTIZATION", "1",
     lambda r: not r.fp4_quant_fwd_weight.fp4_2d_quantization),
    (NVFP4BlockScaling, "NVTE_NVFP4_ROW_SCALED_ACTIVATION", "1",
     lambda r: r.row_scaled_activation),
    (NVFP4BlockScaling, "NVTE_NVFP4_4OVER6", "weights", lambda r: r.nvfp4_4over6 == "weights"),
    (NVFP4BlockScaling, "NVTE_NVFP4_4OVER6_E4M3_USE_256", "none",
     lambda r: r.nvfp4_4over6_e4m3_use_256 == "none"),
    (NVFP4BlockScaling, "NVTE_NVFP4_4OVER6_ERR_MODE", "mse",
     lambda r: r.nvfp4_4over6_err_mode == "MSE"),
    (MXFP8BlockScaling, "NVTE_BACKWARD_OVERRIDE", "dequantized",
     lambda r: r.backward_override == "dequantized"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cls", "name", "value", "holds"),
    ENVIRONMENT,
    ids=[f"{name}={value}" for _, name, value, _ in ENVIRONMENT],
)
def test_environment(cls, name, value, holds, monkeypatch):
    assert not holds(cls())
    monkeypatch.setenv(name, value)
    assert holds(cls())


def test_environment_reaches_custom_recipes(monkeypatch):
    monkeypatch.setenv("NVTE_BACKWARD_OVERRIDE", "high_precision")
    assert CustomRecipe(factory).backward_override == "high_precision"
    with pytest.raises(ConfigError, match=r"DelayedScaling.backward_override"):
        DelayedScaling()


REFUSED = [
    (lambda: CustomRecipe(), "CustomRecipe(qfactory=None)"),
    (lambda: CustomRecipe(qfactory=None), "CustomRecipe(qfactory=None)"),
    (lambda: CustomRecipe(qfactory="nvfp4"), "CustomRecipe(qfactory='nvfp4')"),
    (lambda: CustomRecipe(factory, quantization_alignment=0), "quantization_alignment=0"),
    (lambda: CustomRecipe(factory, backward_override="bf16"), "backward_override='bf16'"),
    (lambda: DelayedScaling(fp8_format="HYBRID"), "fp8_format='HYBRID'"),
    (lambda: DelayedScaling(backward_override="dequantized"), "backward_override='dequantized'"),
    (lambda: DelayedScaling(amax_compute_algo="mean"), "amax_compute_algo='mean'"),
    (lambda: DelayedScaling(amax_history_len=0), "amax_history_len=0"),
    (lambda: Float8BlockScaling(x_block_scaling_dim=3), "x_block_scaling_dim=3"),
    (lambda: Float8BlockScaling(x_block_scaling_dim=2), "w_block_scaling_dim=2"),
    (lambda: Float8BlockScaling(fp8_dpa=True), "fp8_dpa=True"),
    (lambda: Float8BlockScaling(fp8_gemm_fprop=MMParams(False)), "fp8_gemm_fprop"),
    (lambda: NVFP4BlockScaling(fp4_format=Format.E4M3), "fp4_format"),
    (lambda: NVFP4BlockScaling(nvfp4_4over6="some"), "nvfp4_4over6='some'"),
    (lambda: NVFP4BlockScaling(nvfp4_4over6_err_mode="mae"), "nvfp4_4over6_err_mode='mae'"),
]


@pytest.mark.parametrize(("make", "given"), REFUSED, ids=[given for _, given in REFUSED])
def test_what_is_refused(make, given):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (its text is looked at)
        make()
    assert isinstance(caught.value, ConfigError)
    assert given in caught.value.given
    assert caught.value.expected
    assert caught.value.hint


@pytest.mark.parametrize("cls", BUILTIN[:4], ids=lambda c: c.__name__)
def test_e5m2_alone_is_refused(cls):
    with pytest.raises(ConfigError, match=r"fp8_format=Format\.E5M2"):
        cls(fp8_format=Format.E5M2)


@pytest.mark.parametrize("cls", [*BUILTIN, CustomRecipe], ids=lambda c: c.__name__)
def test_predicates(cls):
    predicates = {
        "delayed": {DelayedScaling},
        "float8_current_scaling": {Float8CurrentScaling},
        "float8_per_tensor_scaling": {DelayedScaling, Float8CurrentScaling},
        "float8_block_scaling": {Float8BlockScaling},
        "mxfp8": {MXFP8BlockScaling},
        "nvfp4": {NVFP4BlockScaling},
        "custom": {CustomRecipe},
    }
    for name, classes in predicates.items():
        assert getattr(cls, name)() == (cls in classes)


@pytest.mark.parametrize("cls", BUILTIN, ids=lambda c: c.__name__)
def test_unknown_keywords_are_dropped_with_a_warning(cls):
    with pytest.warns(IgnoredSettingWarning, match=f"{cls.__name__} has no field 'fp8_dpaa'"):
        recipe = cls(fp8_dpaa=True)
    assert recipe == cls()


def test_the_warning_names_the_nearest_field_and_the_users_line():
    with pytest.warns(IgnoredSettingWarning, match="Did you mean 'disable_rht'") as caught:
        NVFP4BlockScaling(disable_rth=True)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (Float8CurrentScaling, "fp8_quant_fwd_inp"),
        (Float8BlockScaling, "fp8_quant_fwd_weight"),
        (NVFP4BlockScaling, "fp4_quant_bwd_grad"),
    ],
)
def test_quantization_options_are_no_keywords(cls, name):
    with pytest.warns(IgnoredSettingWarning, match=name):
        recipe = cls(**{name: QParams(amax_epsilon=1.0)})
    assert getattr(recipe, name).amax_epsilon == 0.0


def test_power_of_two_keyword_reaches_boundary_slots_only():
    with pytest.warns(IgnoredSettingWarning, match="use_power_2_scales") as caught:
        recipe = Float8CurrentScaling(use_power_2_scales=True)
    assert caught[0].filename == __file__
    assert recipe.use_power_2_scales
    assert not recipe.fp8_quant_fwd_inp.power_2_scale


def test_fp32_scales_keyword_has_no_effect():
    with pytest.warns(IgnoredSettingWarning, match="NVTE_FP8_BLOCK_SCALING_FP32_SCALES"):
        recipe = Float8BlockScaling(use_f32_scales=True)
    assert recipe.fp8_quant_fwd_inp.power_2_scale


def test_a_change_after_construction_has_no_effect():
    recipe = NVFP4BlockScaling()
    with pytest.warns(IgnoredSettingWarning, match="setting disable_rht after"):
        recipe.disable_rht = True
    assert recipe.fp4_quant_fwd_inp.random_hadamard_transform


def test_recipes_are_mutable_without_validation_and_equal_by_fields():
    recipe = CustomRecipe(factory)
    assert recipe == CustomRecipe(factory)
    recipe.quantization_alignment = -1
    assert recipe != CustomRecipe(factory)
    assert "quantization_alignment=-1" in repr(recipe)


def test_repr_of_a_custom_recipe_shows_three_fields():
    shown = repr(CustomRecipe(factory, fp8_dpa=True))
    assert shown.startswith("recipe_type=CustomRecipe, qfactory=<function factory")
    assert shown.endswith(", backward_override=None, quantization_alignment=128")
    assert "fp8_dpa" not in shown


def test_repr_of_a_built_in_recipe():
    assert repr(MXFP8BlockScaling()) == (
        "recipe_type=MXFP8BlockScaling, margin=0, fp8_format=E4M3, enable_2d_quantization=False, "
        "fp8_dpa=False, fp8_mha=False, backward_override=None"
    )


def test_alignment():
    sizes = [get_align_size_for_quantization(cls()) for cls in BUILTIN]
    assert sizes == [16, 16, 32, 16, 128]


def test_alignment_of_a_custom_recipe_does_not_ask_the_factory():
    def untouchable(role):
        raise AssertionError("asked")

    assert get_align_size_for_quantization(CustomRecipe(untouchable)) == 128
    recipe = CustomRecipe(untouchable, quantization_alignment=32)
    assert get_align_size_for_quantization(recipe) == 32
