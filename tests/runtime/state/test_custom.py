"""CustomRecipeState: what the factory is called with, what it may answer, what is refused."""

import warnings

import pytest
import torch

from qrole.dtypes import DType
from qrole.errors import ConfigError, FactoryError
from qrole.quantizers import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    IdentityQuantizer,
    MXFP8Quantizer,
)
from qrole.recipes import CustomRecipe, DelayedScaling, Format
from qrole.roles import DelayedScalingRequest, QuantizerRequest, QuantizerRole
from qrole.state import BareRolesWarning, CustomRecipeState, RecipeState

ROLES = [
    QuantizerRole("linear", "input", "layer"),
    QuantizerRole("linear", "weight", "layer"),
    None,
]


def _state(factory, roles=ROLES, n=3, mode="forward"):
    return CustomRecipeState(CustomRecipe(factory), mode=mode, num_quantizers=n, roles=roles)


def _recording(asked):
    def factory(role):
        asked.append(role)
        return IdentityQuantizer()

    return factory


def _weight_delayed(role):
    if role is not None and role.tensor_type == "weight":
        return DelayedScalingRequest()
    return Float8CurrentScalingQuantizer(DType.kFloat8E4M3, "cuda")


def test_called_once_per_slot_in_slot_order_with_none_for_boundaries():
    asked = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantizers = _state(_recording(asked)).make_quantizers()
    assert asked == ROLES
    assert all(a is b for a, b in zip(asked, ROLES, strict=True))
    assert len(quantizers) == 3


def test_building_a_state_asks_nothing():
    asked = []
    _state(_recording(asked))
    assert asked == []


def test_without_a_list_of_roles_the_factory_gets_bare_roles_and_one_warning():
    asked = []
    with pytest.warns(BareRolesWarning, match=r"override get_quantizer_roles\(\)") as caught:
        _state(_recording(asked), roles=None).make_quantizers()
    assert asked == [QuantizerRole()] * 3
    assert len(caught) == 1


def test_none_from_the_factory():
    with pytest.raises(ValueError, match="returned None for forward slot 2 with role None") as e:
        _state(lambda role: None if role is None else IdentityQuantizer()).make_quantizers()
    assert isinstance(e.value, FactoryError)
    assert "IdentityQuantizer()" in e.value.hint


@pytest.mark.parametrize("answer", [MXFP8Quantizer, "mxfp8", QuantizerRequest()], ids=str)
def test_no_quantizer_from_the_factory(answer):
    with pytest.raises(FactoryError, match="for forward slot 0 with role module_type=linear"):
        _state(lambda role: answer).make_quantizers()


def test_what_the_factory_raises_passes():
    def factory(role):
        return {"input": IdentityQuantizer()}[role.tensor_type]

    with pytest.raises(KeyError, match="weight"):
        _state(factory).make_quantizers()


def test_one_object_for_two_slots_is_not_refused():
    shared = IdentityQuantizer()
    assert _state(lambda role: shared).make_quantizers() == [shared] * 3


def test_a_recipe_that_lost_its_factory():
    recipe = CustomRecipe(lambda role: IdentityQuantizer())
    recipe.qfactory = None
    with pytest.raises(ConfigError, match="CustomRecipe requires `qfactory`"):
        RecipeState.create(recipe, mode="forward", num_quantizers=1)


def test_requests_become_quantizers_that_view_one_state():
    request = DelayedScalingRequest(amax_history_len=16, fp8_format=Format.HYBRID)
    state = _state(lambda role: request)
    quantizers = state.make_quantizers()
    inner = state.delayed
    assert all(type(q) is Float8Quantizer for q in quantizers)
    assert inner.scale.tolist() == [1.0] * 3
    assert inner.amax_history.shape == (16, 3)
    assert not inner.amax_history.any()
    for i, quantizer in enumerate(quantizers):
        assert quantizer.scale.data_ptr() == inner.scale[i].data_ptr()
        assert quantizer.amax.data_ptr() == inner.amax_history[0][i].data_ptr()
    assert isinstance(inner.recipe, DelayedScaling)
    assert (inner.recipe.amax_history_len, inner.recipe.fp8_format) == (16, Format.HYBRID)


def test_only_slots_that_asked_are_counted():
    state = _state(_weight_delayed)
    labels = [quantizer.label for quantizer in state.make_quantizers()]
    assert labels == ["FP8 current E4M3", "FP8 delayed E4M3", "FP8 current E4M3"]
    assert state.delayed.scale.shape == (1,)
    assert state.delayed.amax_history.shape == (1024, 1)


def test_backward_slots_take_the_formats_backward_element():
    state = _state(lambda role: DelayedScalingRequest(), roles=[None, None], n=2, mode="backward")
    assert [q.label for q in state.make_quantizers()] == ["FP8 delayed E5M2"] * 2


def test_without_requests_there_is_no_delayed_state():
    state = _state(lambda role: IdentityQuantizer())
    state.make_quantizers()
    assert state.delayed is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fp8_format", Format.E4M3),
        ("margin", 2),
        ("amax_history_len", 1),
        ("amax_compute_algo", "most_recent"),
        ("scaling_factor_compute_algo", max),
        ("reduce_amax", False),
    ],
)
def test_requests_of_one_state_must_agree(name, value):
    def factory(role):
        return DelayedScalingRequest(**{name: value}) if role is None else _weight_delayed(role)

    with pytest.raises(ValueError, match="DelayedScalingRequests") as caught:
        _state(factory).make_quantizers()
    message = str(caught.value)
    assert "All DelayedScalingRequests in one CustomRecipeState must match" in message
    assert "for slot 1" in message, "the first request is in slot 1, not in slot 0"
    assert f"{name}={value!r}" in message
    assert "for slot 2" in message


def test_directions_need_not_agree():
    short = DelayedScalingRequest(amax_history_len=1)
    _state(lambda role: DelayedScalingRequest()).make_quantizers()
    _state(lambda role: short, mode="backward").make_quantizers()


def test_a_rebuilt_state_takes_over_the_same_delayed_state():
    old = _state(_weight_delayed)
    old.make_quantizers()
    old.delayed.scale.fill_(8.0)
    new = _state(_weight_delayed, roles=[*ROLES[:2], QuantizerRole("linear", "input", "next")])
    assert new.inherit_state_from(old)
    quantizer = new.make_quantizers()[1]
    assert new.delayed is old.delayed
    assert quantizer.scale == 8.0


def test_a_rebuilt_state_with_another_number_of_requests_starts_anew():
    old = _state(_weight_delayed)
    old.make_quantizers()
    new = _state(lambda role: DelayedScalingRequest())
    assert new.inherit_state_from(old)
    new.make_quantizers()
    assert new.delayed is not old.delayed
    assert new.delayed.scale.shape == (3,)


def test_nothing_to_take_over():
    identity = _state(lambda role: IdentityQuantizer())
    identity.make_quantizers()
    assert not _state(_weight_delayed).inherit_state_from(identity)


def test_separate_float8_quantizers_own_their_storage():
    def factory(role):
        return Float8Quantizer(torch.ones(1), torch.zeros(1), DType.kFloat8E4M3)

    first, second, _ = _state(factory).make_quantizers()
    assert first.scale.data_ptr() != second.scale.data_ptr()
    assert first.amax.data_ptr() != second.amax.data_ptr()
