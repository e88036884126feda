"""Built-in recipes: which quantizer each slot gets, by role and by position."""

import pytest

from qrole.dtypes import DType
from qrole.errors import ConfigError
from qrole.recipes import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
    IgnoredSettingWarning,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    QParams,
    Recipe,
)
from qrole.roles import QuantizerRole
from qrole.state import RecipeState

FORWARD = ("input", "weight", "output")
BACKWARD = ("grad_output", "grad_input")


def _roles(*tensor_types, module_type="linear"):
    return [QuantizerRole(module_type, t, "layer") for t in tensor_types]


def _state(recipe, mode, n, roles=None):
    return RecipeState.create(recipe, mode=mode, num_quantizers=n, roles=roles)


def _labels(recipe, mode, roles, n=None):
    quantizers = _state(recipe, mode, n or len(roles), roles).make_quantizers()
    return [quantizer.label for quantizer in quantizers]


TABLE = [
    (DelayedScaling(), ["FP8 delayed E4M3"] * 3, ["FP8 delayed E5M2"] * 2),
    (Float8CurrentScaling(), ["FP8 current E4M3"] * 3, ["FP8 current E5M2"] * 2),
    (MXFP8BlockScaling(), ["MXFP8 E4M3"] * 3, ["MXFP8 E4M3"] * 2),
    (MXFP8BlockScaling(fp8_format=Format.HYBRID), ["MXFP8 E4M3"] * 3, ["MXFP8 E5M2"] * 2),
    (
        MXFP8BlockScaling(enable_2d_quantization=True),
        ["MXFP8 E4M3", "MXFP8 E4M3 2D", "MXFP8 E4M3"],
        ["MXFP8 E4M3"] * 2,
    ),
    (
        Float8BlockScaling(),
        ["FP8 block 1x128 E4M3", "FP8 block 128x128 E4M3", "FP8 block 1x128 E4M3"],
        ["FP8 block 1x128 E4M3"] * 2,
    ),
    (
        Float8BlockScaling(
            fp8_format=Format.HYBRID, w_block_scaling_dim=1, grad_block_scaling_dim=2
        ),
        ["FP8 block 1x128 E4M3"] * 3,
        ["FP8 block 128x128 E5M2"] * 2,
    ),
    (NVFP4BlockScaling(), ["NVFP4 RHT", "NVFP4 2D", "NVFP4 RHT"], ["NVFP4 RHT SR"] * 2),
    (
        NVFP4BlockScaling(
            disable_rht=True, disable_stochastic_rounding=True, disable_2d_quantization=True
        ),
        ["NVFP4"] * 3,
        ["NVFP4"] * 2,
    ),
    (
        NVFP4BlockScaling(disable_rht=True, row_scaled_activation=True),
        ["NVFP4 row-scaled", "NVFP4 2D", "NVFP4 row-scaled"],
        ["NVFP4 SR"] * 2,
    ),
    (
        NVFP4BlockScaling(nvfp4_4over6="weights"),
        ["NVFP4 RHT", "NVFP4 2D 4/6 MAE max 256", "NVFP4 RHT"],
        ["NVFP4 RHT SR"] * 2,
    ),
    (
        NVFP4BlockScaling(
            disable_rht=True,
            nvfp4_4over6="all",
            nvfp4_4over6_e4m3_use_256="activations",
            nvfp4_4over6_err_mode="MSE",
        ),
        ["NVFP4 4/6 MSE max 256", "NVFP4 2D 4/6 MSE", "NVFP4 4/6 MSE max 256"],
        ["NVFP4 SR"] * 2,
    ),
]
IDS = [f"{i}-{recipe.kind}" for i, (recipe, _, _) in enumerate(TABLE)]


@pytest.mark.parametrize(("recipe", "forward", "backward"), TABLE, ids=IDS)
def test_quantizer_per_role(recipe, forward, backward):
    assert _labels(recipe, "forward", _roles(*FORWARD)) == forward
    assert _labels(recipe, "backward", _roles(*BACKWARD)) == backward


BY_POSITION = [Float8BlockScaling(), NVFP4BlockScaling()]


@pytest.mark.parametrize("recipe", BY_POSITION, ids=lambda r: r.kind)
def test_without_roles_positions_decide(recipe):
    assert _labels(recipe, "forward", None, 3) == _labels(recipe, "forward", _roles(*FORWARD))
    assert _labels(recipe, "forward", None, 2) == _labels(recipe, "forward", _roles(*FORWARD[:2]))
    repeated = _roles(*FORWARD, *FORWARD)
    assert _labels(recipe, "forward", None, 6) == _labels(recipe, "forward", repeated)


@pytest.mark.parametrize("recipe", BY_POSITION, ids=lambda r: r.kind)
@pytest.mark.parametrize(
    "role", [None, QuantizerRole(), QuantizerRole("dpa", "qkv", "a")], ids=["none", "bare", "qkv"]
)
def test_roles_that_say_nothing_fall_back_to_the_position(recipe, role):
    expected = _labels(recipe, "forward", _roles(*FORWARD))
    assert _labels(recipe, "forward", [role] * 3) == expected


def test_square_mxfp8_blocks_have_no_positional_fallback():
    recipe = MXFP8BlockScaling(enable_2d_quantization=True)
    assert _labels(recipe, "forward", None, 3) == ["MXFP8 E4M3"] * 3
    grouped = _roles("weight", module_type="grouped_linear")
    assert _labels(recipe, "forward", grouped) == ["MXFP8 E4M3 2D"]
    other = _roles("weight", module_type="moe_expert")
    assert _labels(recipe, "forward", other) == ["MXFP8 E4M3"]


def test_slot_role_and_tensor_type():
    emitted = [
        QuantizerRole("linear", "weight", "a"),
        QuantizerRole("dpa", "qkv", "a"),
        None,
        QuantizerRole("moe_expert"),
    ]
    state = _state(NVFP4BlockScaling(), "forward", 4, emitted)
    assert state.slot_role(0) is emitted[0]
    assert state.slot_role(1) is emitted[1]
    assert state.slot_role(2) == QuantizerRole()
    assert state.slot_role(3) is emitted[3]
    assert [state.slot_tensor_type(i) for i in range(4)] == ["weight", "weight", "output", "input"]


def test_positions_without_roles():
    forward = _state(NVFP4BlockScaling(), "forward", 4)
    assert [forward.slot_role(i) for i in range(4)] == [QuantizerRole()] * 4
    assert [forward.slot_tensor_type(i) for i in range(4)] == [
        "input", "weight", "output", "input",
    ]  # fmt: skip
    backward = _state(NVFP4BlockScaling(), "backward", 3)
    assert [backward.slot_tensor_type(i) for i in range(3)] == [
        "grad_output", "grad_input", "grad_output",
    ]  # fmt: skip


def test_current_scaling_options_reach_three_tensors_only():
    with pytest.warns(IgnoredSettingWarning):
        recipe = Float8CurrentScaling(use_power_2_scales=True)
    recipe.fp8_quant_fwd_weight = QParams(amax_epsilon=0.5)
    inner, weight, output = _state(recipe, "forward", 3, _roles(*FORWARD)).make_quantizers()
    assert (inner.force_pow_2_scales, weight.force_pow_2_scales) == (False, False)
    assert (inner.amax_epsilon, weight.amax_epsilon) == (0.0, 0.5)
    assert output.force_pow_2_scales


def test_four_over_six_with_rht_is_refused():
    state = _state(NVFP4BlockScaling(nvfp4_4over6="activations"), "forward", 3, _roles(*FORWARD))
    with pytest.raises(ConfigError, match="nvfp4_use_4over6=True together with with_rht=True"):
        state.make_quantizers()


def test_quantizers_are_new_each_time():
    state = _state(MXFP8BlockScaling(), "forward", 3)
    first, second = state.make_quantizers(), state.make_quantizers()
    assert len({id(q) for q in first + second}) == 6


def test_wrong_number_of_roles():
    with pytest.raises(ValueError, match="RecipeState requires roles to match num_quantizers"):
        _state(MXFP8BlockScaling(), "forward", 3, _roles("input"))


def test_wrong_mode():
    with pytest.raises(ConfigError, match="mode='sideways'"):
        _state(MXFP8BlockScaling(), "sideways", 1)


def test_unknown_kind_of_recipe():
    with pytest.raises(ConfigError, match="the recipe Recipe"):
        _state(Recipe(), "forward", 1)


def test_element_types():
    hybrid = _state(DelayedScaling(), "backward", 1)
    assert hybrid.dtype is DType.kFloat8E5M2
    e4m3 = _state(DelayedScaling(fp8_format=Format.E4M3), "backward", 1)
    assert e4m3.dtype is DType.kFloat8E4M3
