"""Delayed-scaling state in checkpoints, and checkpoints of TransformerEngine."""

from __future__ import annotations

import pickle

import pytest
import torch

from qrole.autocasting import autocast
from qrole.factories.builtin import delayed_scaling_factory, mxfp8_factory
from qrole.modules import Linear, TransformerLayer, ops
from qrole.modules.extra_state import ForeignStateWarning
from qrole.recipes import CustomRecipe, DelayedScaling
from tests.runtime.modules.training import noise

RECIPES = {"built-in": DelayedScaling, "custom": lambda: CustomRecipe(delayed_scaling_factory)}


def _step(module, recipe, seed=1):
    x = noise(32, 32, seed=seed, dtype=torch.float32).requires_grad_()
    with autocast(recipe=recipe):
        y = module(x)
    y.backward(noise(32, 32, seed=2, dtype=torch.float32))
    return y.detach(), x.grad


@pytest.mark.parametrize("kind", [Linear, ops.BasicLinear])
@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(kind, name):
    first, recipe = kind(32, 32), RECIPES[name]()
    for seed in range(3):
        _step(first, recipe, seed)
    resumed = kind(32, 32)
    resumed.load_state_dict(first.state_dict())
    given, expected = _step(resumed, RECIPES[name](), 7), _step(first, recipe, 7)
    assert all(torch.equal(a, b) for a, b in zip(given, expected, strict=True))
    for mode, buffers in first.delayed_buffers().items():
        assert torch.equal(resumed.delayed_buffers()[mode].scale, buffers.scale)
        assert torch.equal(resumed.delayed_buffers()[mode].amax_history, buffers.amax_history)


def test_state_is_loaded_into_buffers_that_exist():
    first, other = Linear(32, 32), Linear(32, 32)
    for module in (first, other):
        _step(module, DelayedScaling())
    _step(first, DelayedScaling(), seed=5)
    buffers = other.delayed_buffers()["forward"]
    other.load_state_dict(first.state_dict())
    assert other.delayed_buffers()["forward"] is buffers
    assert torch.equal(buffers.scale, first.delayed_buffers()["forward"].scale)


def test_only_delayed_scaling_leaves_a_trace_in_the_checkpoint():
    module = Linear(32, 32)
    _step(module, CustomRecipe(mxfp8_factory))
    assert set(module.state_dict()) == {"weight", "bias"}
    _step(module, CustomRecipe(delayed_scaling_factory))
    assert set(module.state_dict()) == {"weight", "bias", "_extra_state"}


def test_transformer_engines_checkpoints_load_strictly():
    layer = TransformerLayer(64, 64, 4)
    names = [name for name, _ in layer.named_modules() if "norm" in name or "proj" in name]
    empty = {f"{name}._extra_state": torch.empty(0, dtype=torch.uint8) for name in names}
    layer.load_state_dict({**layer.state_dict(), **empty})


def test_a_pickle_is_not_opened():
    stored = torch.frombuffer(bytearray(pickle.dumps({"scale_fwd": 1})), dtype=torch.uint8)
    module = Linear(32, 32)
    with pytest.warns(ForeignStateWarning, match="it is a pickle"):
        module.load_state_dict({**module.state_dict(), "_extra_state": stored})
    _step(module, DelayedScaling())


def test_state_of_another_shape_is_left():
    first, other = Linear(32, 32), Linear(32, 32)
    _step(first, DelayedScaling(amax_history_len=4))
    other.load_state_dict(first.state_dict())
    with (
        pytest.warns(ForeignStateWarning) as caught,
        autocast(recipe=DelayedScaling(amax_history_len=8)),
    ):
        other(torch.randn(32, 32))
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2
    assert "its forward history has shape (4, 3), not (8, 3)" in texts[0]
    assert "its backward history has shape (4, 2), not (8, 2)" in texts[1]
