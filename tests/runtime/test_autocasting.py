"""The autocast region: nesting, undoing, deprecated spellings."""

import pytest

from qrole.autocasting import (
    autocast,
    current_autocast,
    fp8_autocast,
    fp8_model_init,
    quantized_model_init,
)
from qrole.recipes import DelayedScaling, IgnoredSettingWarning, MXFP8BlockScaling

RECIPE = MXFP8BlockScaling()


def test_outside():
    state = current_autocast()
    assert not state.enabled
    assert state.depth == 0
    assert state.get_recipe() == DelayedScaling()


def test_regions_nest_and_undo_themselves():
    with autocast(recipe=RECIPE, amax_reduction_group=None):
        assert current_autocast().enabled
        assert current_autocast().get_recipe() is RECIPE
        with autocast(enabled=False):
            assert not current_autocast().enabled
            assert current_autocast().depth == 2
        assert current_autocast().recipe is RECIPE
    assert current_autocast().depth == 0


def test_undone_after_an_exception():
    with pytest.raises(RuntimeError, match="inside"), autocast(recipe=RECIPE):
        raise RuntimeError("inside")
    assert not current_autocast().enabled


def test_without_a_recipe_it_is_delayed_scaling():
    with autocast():
        assert current_autocast().get_recipe() == DelayedScaling()


def test_as_a_decorator():
    @autocast(recipe=RECIPE)
    def inner():
        return current_autocast().recipe

    assert inner() is RECIPE


def test_older_spelling():
    with (
        pytest.warns(DeprecationWarning, match="fp8_autocast is deprecated") as caught,
        fp8_autocast(enabled=True, fp8_recipe=RECIPE),
    ):
        assert current_autocast().recipe is RECIPE
    assert caught[0].filename == __file__


def test_quantized_parameters_are_not_kept():
    with (
        pytest.warns(IgnoredSettingWarning, match="keeps parameters in high precision"),
        quantized_model_init(recipe=RECIPE),
    ):
        pass
    with quantized_model_init(enabled=False):
        pass
    with (
        pytest.warns(DeprecationWarning, match="fp8_model_init is deprecated"),
        fp8_model_init(enabled=False),
    ):
        pass
