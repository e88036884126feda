"""What the linear function keeps for its backward pass."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from qrole.autocasting import autocast
from qrole.factories import builtin
from qrole.modules import Linear
from qrole.recipes import CustomRecipe, MXFP8BlockScaling
from tests.runtime.modules.training import BF16, noise

FACTORIES = {
    "mxfp8": builtin.mxfp8_factory,
    "nvfp4": builtin.nvfp4_factory,
    "float8_block": builtin.float8_block_scaling_factory,
    "high precision": builtin.high_precision_factory,
}


def _saved(recipe, x):
    """Tensors that autograd keeps between the passes."""
    seen = []
    module = Linear(128, 256, bias=False, params_dtype=BF16)

    def pack(tensor):
        seen.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor), autocast(recipe=recipe):
        y = module(x)
    return module, y, seen


def test_quantized_operands_are_kept_in_one_representation():
    """MXFP8, column-wise: a byte per element and one per 32 of them."""
    x = noise(64, 128, seed=1).requires_grad_()
    _, _, seen = _saved(MXFP8BlockScaling(), x)
    assert {t.dtype for t in seen} == {torch.uint8}
    elements = 64 * 128 + 256 * 128
    assert sum(t.numel() for t in seen) == elements + elements // 32


def test_what_the_backward_pass_does_not_read_is_not_kept():
    x = noise(64, 128, seed=1)
    _, _, seen = _saved(MXFP8BlockScaling(), x)
    assert sum(t.numel() for t in seen) == 64 * 128 * 33 // 32, "the input, not the weight"
    with torch.no_grad():
        assert _saved(MXFP8BlockScaling(), x)[2] == []


@pytest.mark.parametrize("name", FACTORIES)
def test_gradients_survive_the_hooks(name):
    recipe = CustomRecipe(FACTORIES[name])
    x = noise(64, 128, seed=1).requires_grad_()
    grads = []
    for hooked in (False, True):
        torch.manual_seed(0)
        module = Linear(128, 256, params_dtype=BF16)
        hooks = saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone())
        with autocast(recipe=recipe):
            if hooked:
                with hooks:
                    y = module(x)
            else:
                y = module(x)
        grads.append(torch.autograd.grad(y, (x, module.weight), noise(64, 256, seed=2)))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("recipe", [None, CustomRecipe(builtin.high_precision_factory)])
def test_an_input_changed_in_place_is_noticed(recipe):
    module = Linear(128, 256, params_dtype=BF16)
    x = noise(64, 128, seed=1)
    with autocast(enabled=recipe is not None, recipe=recipe):
        y = module(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
