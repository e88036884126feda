"""Rows of experts padded to what a format needs."""

from __future__ import annotations

import pytest
import torch

from qrole.autocasting import autocast
from qrole.errors import ConfigError
from qrole.factories import builtin, zoo
from qrole.modules import Fp8Padding, Fp8Unpadding, GroupedLinear
from qrole.recipes import (
    CustomRecipe,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from tests.runtime.modules.training import BF16, noise


@pytest.mark.parametrize(
    "factory",
    [
        builtin.current_scaling_factory,
        builtin.mxfp8_factory,
        builtin.nvfp4_factory,
        zoo.mxfp8_fwd_nvfp4_bwd_factory,
    ],
)
def test_padded_experts(factory):
    """Splits [17, 15] become [128, 128]; the padding does not change what is there."""
    padding, unpadding = Fp8Padding(2), Fp8Unpadding(2)
    module = GroupedLinear(2, 64, 64, params_dtype=BF16)
    x = noise(32, 64, seed=1).requires_grad_()
    with autocast(recipe=CustomRecipe(factory)):
        padded, splits = padding(x, [17, 15])
        assert splits == [128, 128]
        assert padded.shape == (256, 64)
        y = unpadding(module(padded, splits), [17, 15])
    assert y.shape == (32, 64)
    y.backward(noise(32, 64, seed=2))
    for tensor in (y, x.grad, module.weight0.grad, module.weight1.grad):
        assert tensor.isfinite().all()
        assert tensor.any()


def test_padding_and_unpadding_undo_each_other_with_their_gradients():
    x = torch.randn(7, 4, requires_grad=True)
    padded, splits = Fp8Padding(3, align_size=4)(x, [3, 0, 4])
    assert splits == [4, 0, 4]
    assert torch.equal(padded[:3], x[:3])
    assert not padded[3].any()
    y = Fp8Unpadding(3, align_size=4)(padded, [3, 0, 4])
    assert torch.equal(y, x)
    grad = torch.randn(7, 4)
    assert torch.equal(torch.autograd.grad(y, x, grad)[0], grad)


def test_nothing_to_pad_gives_the_input_itself():
    x = torch.randn(8, 4)
    padded, splits = Fp8Padding(2, align_size=4)(x, [4, 4])
    assert padded is x
    assert splits == [4, 4]
    assert Fp8Unpadding(2, align_size=4)(x, [4, 4]) is x


def test_the_recipes_alignment_is_taken_at_first_use_and_kept():
    padding, x = Fp8Padding(1), torch.randn(3, 4)
    with autocast(recipe=MXFP8BlockScaling()):
        padding(x, [3])
    with autocast(recipe=NVFP4BlockScaling()):
        assert padding(x, [3])[1] == [32]


def test_another_number_of_splits_is_refused():
    with pytest.raises(ConfigError, match="1 entries for 2 experts"):
        Fp8Padding(2, align_size=4)(torch.randn(3, 4), [3])
