"""When quantizers are built again, when TransformerEngine would keep old ones, and who is told."""

from __future__ import annotations

import pytest
import torch

from qrole.autocasting import autocast
from qrole.dtypes import DType
from qrole.errors import ConfigError, FactoryError
from qrole.factories.builtin import current_scaling_factory, mxfp8_factory
from qrole.modules import Linear, MissingRoleWarning, StaleQuantizersWarning, ops
from qrole.modules.rebuild import RoleCountError
from qrole.quantizers import Float8CurrentScalingQuantizer, MXFP8Quantizer
from qrole.recipes import CustomRecipe, Float8CurrentScaling
from qrole.roles import QuantizerRole

NEXT = QuantizerRole("linear", "input", "next")


def _forward(module, recipe, x=None):
    with autocast(recipe=recipe):
        return module(torch.randn(32, 32) if x is None else x)


def _first(module) -> type:
    return type(module.quantizers["scaling_fwd"][0])


class TestBoundaryRoles:
    @pytest.mark.parametrize("name", ["output_quantizer_role", "grad_input_quantizer_role"])
    def test_an_equal_role_leaves_the_flag_and_another_clears_it(self, name):
        module = Linear(32, 32)
        assert getattr(module, name) is None
        setattr(module, name, NEXT)
        _forward(module, CustomRecipe(mxfp8_factory))
        assert module.fp8_meta_tensors_initialized
        setattr(module, name, QuantizerRole("linear", "input", "next"))
        assert module.fp8_meta_tensors_initialized
        setattr(module, name, None)
        assert not module.fp8_meta_tensors_initialized

    def test_forward_with_an_equal_recipe_keeps_the_old_quantizers(self):
        """As TransformerEngine's does, whose documentation says otherwise."""
        asked = []

        def factory(role):
            asked.append(role)
            return mxfp8_factory(role)

        module, recipe = Linear(32, 32), CustomRecipe(factory)
        _forward(module, recipe)
        quantizers = module.quantizers["scaling_fwd"]
        module.output_quantizer_role = NEXT
        with pytest.warns(StaleQuantizersWarning, match="a boundary role changed"):
            _forward(module, recipe)
        assert module.quantizers["scaling_fwd"] is quantizers
        assert NEXT not in asked
        module.init_fp8_meta_tensors(recipe)
        assert asked[5:] == [*asked[:2], NEXT, *asked[3:5]]
        _forward(module, recipe)

    def test_a_role_set_before_the_first_forward_is_asked_for(self):
        asked = []

        def factory(role):
            asked.append(role)
            return mxfp8_factory(role)

        module = Linear(32, 32)
        module.output_quantizer_role = NEXT
        _forward(module, CustomRecipe(factory))
        assert asked[2] == NEXT


class TestFactories:
    def test_a_factory_replaced_in_the_same_recipe_goes_unnoticed(self):
        module, recipe = Linear(32, 32), CustomRecipe(mxfp8_factory)
        _forward(module, recipe)
        recipe.qfactory = current_scaling_factory
        with pytest.warns(StaleQuantizersWarning, match="recipe.qfactory was replaced"):
            _forward(module, recipe)
        assert _first(module) is MXFP8Quantizer
        module.init_fp8_meta_tensors(CustomRecipe(current_scaling_factory))
        _forward(module, recipe)
        assert _first(module) is Float8CurrentScalingQuantizer

    def test_a_recipe_with_another_factory_is_another_recipe(self):
        module = Linear(32, 32)
        _forward(module, CustomRecipe(mxfp8_factory))
        _forward(module, CustomRecipe(current_scaling_factory))
        assert _first(module) is Float8CurrentScalingQuantizer

    def test_an_op_keeps_its_quantizers_under_a_second_custom_recipe(self):
        op = ops.BasicLinear(32, 32)
        _forward(op, CustomRecipe(mxfp8_factory))
        with pytest.warns(StaleQuantizersWarning, match="does not notice a second CustomRecipe"):
            _forward(op, CustomRecipe(current_scaling_factory))
        assert isinstance(op.get_quantizer("forward", 0), MXFP8Quantizer)
        op.reset_recipe_state(recipe=None)
        _forward(op, CustomRecipe(current_scaling_factory))
        assert isinstance(op.get_quantizer("forward", 0), Float8CurrentScalingQuantizer)

    def test_an_op_builds_anew_for_a_recipe_of_another_class(self):
        op = ops.BasicLinear(32, 32)
        _forward(op, CustomRecipe(mxfp8_factory))
        _forward(op, Float8CurrentScaling())
        assert isinstance(op.get_quantizer("forward", 0), Float8CurrentScalingQuantizer)

    def test_an_op_forgets_its_quantizers_outside_autocast(self):
        op = ops.BasicLinear(32, 32)
        _forward(op, CustomRecipe(mxfp8_factory))
        op(torch.randn(32, 32))
        assert op.get_quantizer("forward", 0) is None

    def test_what_the_factory_raises_passes(self):
        def factory(role):
            raise KeyError(role)

        with pytest.raises(KeyError):
            _forward(Linear(32, 32), CustomRecipe(factory))

    def test_none_and_other_objects_are_refused_with_slot_and_role(self):
        def none_for_weights(role):
            return (
                None if role is not None and role.tensor_type == "weight" else mxfp8_factory(role)
            )

        with pytest.raises(
            FactoryError, match=r"returned None for forward slot 1 with role.*weight"
        ):
            _forward(Linear(32, 32), CustomRecipe(none_for_weights))
        with pytest.raises(FactoryError, match="'mxfp8' of type str"):
            _forward(Linear(32, 32), CustomRecipe(lambda role: "mxfp8"))


class TestRoleLists:
    class _Short(Linear):
        def get_quantizer_roles(self, *, fwd, num_quantizers):
            return [QuantizerRole()]

    def test_another_number_of_roles_is_an_error_that_asserts_too(self):
        module = self._Short(32, 32)
        with pytest.raises(RoleCountError, match="1 roles for 3 forward slots"):
            _forward(module, CustomRecipe(mxfp8_factory))
        with pytest.raises(AssertionError, match="Recipe roles must match number of quantizers"):
            _forward(module, CustomRecipe(mxfp8_factory))

    def test_an_op_with_another_number_of_roles(self):
        class Short(ops.BasicLinear):
            def get_quantizer_roles(self, mode):
                return []

        with pytest.raises(RoleCountError, match="0 roles for 2 forward slots"):
            _forward(Short(32, 32), CustomRecipe(mxfp8_factory))

    def test_a_role_that_no_vocabulary_knows_is_passed_on(self):
        class Expert(Linear):
            def get_quantizer_roles(self, *, fwd, num_quantizers):
                return [QuantizerRole("moe_expert")] * num_quantizers

        asked = []

        def factory(role):
            asked.append(role)
            return MXFP8Quantizer(DType.kFloat8E4M3)

        _forward(Expert(32, 32), CustomRecipe(factory))
        assert asked == [QuantizerRole("moe_expert")] * 5


class TestQuantizedBoundaries:
    @pytest.mark.parametrize(
        ("flag", "role"),
        [("fp8_output", "output_quantizer_role"), ("fp8_grad", "grad_input_quantizer_role")],
    )
    def test_a_quantized_tensor_without_a_named_reader_warns(self, flag, role):
        module, recipe = Linear(32, 32), CustomRecipe(current_scaling_factory)
        with (
            pytest.warns(MissingRoleWarning, match=f"{flag}=True but {role} is not set"),
            autocast(recipe=recipe),
        ):
            module(torch.randn(32, 32), **{flag: True})

    def test_built_in_recipes_and_plain_runs_do_not_warn(self):
        module = Linear(32, 32)
        with autocast(recipe=Float8CurrentScaling()):
            module(torch.randn(32, 32), fp8_output=True, fp8_grad=True)
        module(torch.randn(32, 32), fp8_output=True)


def test_input_and_parameters_of_unequal_dtype_are_refused():
    with pytest.raises(
        ConfigError, match=r"torch\.bfloat16 and a parameter 'weight' of torch\.float32"
    ):
        Linear(32, 32)(torch.randn(4, 32, dtype=torch.bfloat16))


def test_torch_autocast_sets_the_dtype():
    module = Linear(32, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = module(torch.randn(4, 32))
    assert y.dtype is torch.bfloat16
    y.sum().backward()
    assert module.weight.grad.dtype is torch.float32
