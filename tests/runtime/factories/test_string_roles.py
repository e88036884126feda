"""Factories that were written when a role was a string."""

import functools

import pytest

from qrole.dtypes import DType
from qrole.factories.string_roles import (
    StringRoleWarning,
    adapt_string_roles,
    takes_string_roles,
)
from qrole.plugins import Factory
from qrole.quantizers import Float8CurrentScalingQuantizer, IdentityQuantizer, MXFP8Quantizer
from qrole.recipes import CustomRecipe
from qrole.roles import QuantizerRole
from qrole.state import RecipeState

seen = []


def old_style(role):
    seen.append(role)
    if role == "linear_grad_output":
        return Float8CurrentScalingQuantizer(DType.kFloat8E5M2, device="cuda")
    if role in ("linear_input", "linear_weight"):
        return Float8CurrentScalingQuantizer(DType.kFloat8E4M3, device="cuda")
    return None


def new_style(role):
    if role is not None and f"linear_{role.tensor_type}" == "linear_input":
        return IdentityQuantizer()
    return MXFP8Quantizer(DType.kFloat8E4M3)


class OldStyle:
    def __call__(self, role):
        return MXFP8Quantizer(DType.kFloat8E4M3) if role == "linear_weight" else None


def _with_option(role, element):
    return MXFP8Quantizer(element) if role == "linear_input" else None


@pytest.mark.parametrize(
    ("factory", "old"),
    [
        (old_style, True),
        (OldStyle(), True),
        (functools.partial(_with_option, element=DType.kFloat8E4M3), True),
        (new_style, False),
        (lambda role: IdentityQuantizer(), False),
        (print, False),
    ],
    ids=["function", "object", "partial", "new", "lambda", "builtin"],
)
def test_recognized_by_source(factory, old):
    seen.clear()
    assert takes_string_roles(factory) is old
    assert seen == [], "asking would be a call too many"


def test_a_new_factory_is_left_alone():
    assert adapt_string_roles(new_style) is new_style


def test_roles_become_strings_and_none_becomes_high_precision():
    seen.clear()
    with pytest.warns(
        StringRoleWarning, match=r"old_style of test_string_roles\.py takes the string"
    ):
        adapted = adapt_string_roles(old_style)
    roles = [
        QuantizerRole("linear", "input", "a"),
        QuantizerRole("grouped_linear", "weight", "b"),
        None,
        QuantizerRole("linear", "grad_output", "a"),
        QuantizerRole("dpa", "qkv", "c"),
        QuantizerRole(),
    ]
    labels = [adapted(role).label for role in roles]
    assert seen == ["linear_input", "linear_weight", "linear_output", "linear_grad_output"]
    plain = "high precision"
    assert labels == [
        "FP8 current E4M3", "FP8 current E4M3", plain, "FP8 current E5M2", plain, plain,
    ]  # fmt: skip


def test_the_factory_keeps_its_identity():
    with pytest.warns(StringRoleWarning):
        factory = Factory.of(old_style)
    assert factory.qualname.endswith("test_string_roles.old_style")
    assert factory.file == __file__
    assert factory.function is not old_style


def test_a_recipe_adapts_too():
    with pytest.warns(StringRoleWarning):
        state = RecipeState.create(
            CustomRecipe(qfactory=old_style),
            mode="backward",
            num_quantizers=2,
            roles=[QuantizerRole("linear", "grad_output", "a"), None],
        )
    labels = [quantizer.label for quantizer in state.make_quantizers()]
    assert labels == ["FP8 current E5M2", "high precision"]
