"""Delayed scaling: steps, shared buffers, inheritance across rebuilds, mixed states."""

from __future__ import annotations

import copy

import pytest
import torch

from qrole.autocasting import autocast
from qrole.dtypes import DType
from qrole.errors import FactoryError
from qrole.factories.builtin import delayed_scaling_factory
from qrole.modules import Linear
from qrole.quantizers import Float8CurrentScalingQuantizer, Float8Quantizer
from qrole.recipes import CustomRecipe, DelayedScaling, Float8CurrentScaling, Format
from qrole.roles import DelayedScalingRequest, QuantizerRole
from tests.runtime.modules.training import (
    BF16,
    KINDS,
    TOKENS,
    WIDTH,
    assert_same,
    build,
    noise,
    step,
)


def _linear(name: str | None = None) -> Linear:
    torch.manual_seed(0)
    return Linear(WIDTH, WIDTH, params_dtype=BF16, name=name)


def _run(module, recipe, x):
    with autocast(recipe=recipe):
        y = module(x)
    y.backward(noise(*y.shape, seed=9))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algo", ["max", "most_recent"])
def test_five_steps_equal_the_built_in_recipe(kind, algo):
    """Inputs grow from step to step, so that scales move; states agree as well as results."""
    request = DelayedScalingRequest(amax_history_len=3, amax_compute_algo=algo)
    recipes = (
        CustomRecipe(lambda role: request),
        DelayedScaling(amax_history_len=3, amax_compute_algo=algo),
    )
    modules, made = [build(kind), build(kind)], KINDS[kind]
    scales = []
    for i in range(5):
        x = noise(*made.shape, seed=i) * 2**i
        given, expected = (
            step(module, recipe, x=x, extra=made.extra, seed=i)
            for module, recipe in zip(modules, recipes, strict=True)
        )
        assert_same([given], [expected])
        buffers = [_buffers(module) for module in modules]
        for (s0, h0), (s1, h1) in zip(*buffers, strict=True):
            assert torch.equal(s0, s1)
            assert torch.equal(h0, h1)
        scales.append(buffers[0][0][0].clone())
    assert len({tuple(s.tolist()) for s in scales}) > 1, "the scales never moved"


def _buffers(module):
    from qrole.modules.rebuild import buffers_of

    states = []
    for child in module.modules():
        meta = getattr(child, "fp8_meta", None)
        found = [] if meta is None else [meta[k] for k in ("scaling_fwd", "scaling_bwd")]
        states += found or list(getattr(child, "_states", {}).values())
    buffers = [buffers_of(state) for state in states]
    return [(b.scale, b.amax_history) for b in buffers if b is not None]


def test_scales_follow_the_amax_of_the_step_before():
    """Hand-computed: E4M3 forward (448), E5M2 backward (57344), history of two steps, max."""
    module = Linear(16, 16, bias=False, params_dtype=torch.float32)
    with torch.no_grad():
        module.weight.fill_(0.5)
    recipe = DelayedScaling(amax_history_len=2)
    forward, backward = [], []
    for amax in (2.0, 8.0, 4.0, 4.0):
        x = torch.zeros(16, 16)
        x[0, 0] = amax
        with autocast(recipe=recipe):
            y = module(x.requires_grad_())
        y.backward(torch.full_like(y, amax / 4))
        state = module.fp8_meta
        forward.append(state["scaling_fwd"].scale.tolist()[:2])
        backward.append(state["scaling_bwd"].scale.tolist()[0])
    assert forward == [[224.0, 896.0], [56.0, 896.0], [56.0, 896.0], [112.0, 896.0]]
    assert backward == [114688.0, 28672.0, 28672.0, 57344.0]


def test_first_step_uses_scale_one():
    module = _linear()
    x = noise(TOKENS, WIDTH, seed=1)
    with autocast(recipe=DelayedScaling()):
        y = module(x)
    quantizer = Float8Quantizer(torch.ones(()), torch.zeros(()), DType.kFloat8E4M3)
    x_hat, w_hat = (quantizer(t).dequantize(torch.float32) for t in (x, module.weight.detach()))
    expected = (x_hat @ w_hat.t()).to(BF16)
    assert torch.equal(y, expected)


def test_history_is_filled_after_the_first_of_three_steps():
    module, recipe = _linear(), CustomRecipe(delayed_scaling_factory)
    for i in range(3):
        _run(module, recipe, noise(TOKENS, WIDTH, seed=i).requires_grad_())
        history = module.fp8_meta["scaling_fwd"].delayed.amax_history
        assert history.any()


class TestSharedBuffers:
    def test_quantizers_view_the_state(self):
        request = DelayedScalingRequest(Format.E4M3, amax_history_len=16)
        module = _linear()
        _run(module, CustomRecipe(lambda role: request), noise(TOKENS, WIDTH, seed=1))
        state = module.fp8_meta["scaling_fwd"].delayed
        assert state.scale.shape == (3,)
        assert state.amax_history.shape == (16, 3)
        assert state.recipe.fp8_format is Format.E4M3
        for i, quantizer in enumerate(module.quantizers["scaling_fwd"]):
            assert isinstance(quantizer, Float8Quantizer)
            assert quantizer.scale.data_ptr() == state.scale[i].data_ptr()
            assert quantizer.amax.data_ptr() == state.amax_history[0][i].data_ptr()

    def test_only_the_slots_that_asked_have_a_column(self):
        def factory(role):
            if role is not None and role.tensor_type == "weight":
                return DelayedScalingRequest()
            return Float8CurrentScalingQuantizer(DType.kFloat8E4M3, device="cuda")

        module = _linear()
        _run(module, CustomRecipe(factory), noise(TOKENS, WIDTH, seed=1))
        classes = [type(q).__name__ for q in module.quantizers["scaling_fwd"]]
        current = "Float8CurrentScalingQuantizer"
        assert classes == [current, "Float8Quantizer", current]
        state = module.fp8_meta["scaling_fwd"].delayed
        assert state.scale.shape == (1,)
        assert state.amax_history.shape == (1024, 1)
        assert module.fp8_meta["scaling_bwd"].delayed is None

    def test_requests_of_one_direction_must_agree(self):
        def factory(role):
            weight = role is not None and role.tensor_type == "weight"
            return DelayedScalingRequest(margin=1 if weight else 0)

        with pytest.raises(FactoryError, match="All DelayedScalingRequests in one"):
            _run(_linear(), CustomRecipe(factory), noise(TOKENS, WIDTH, seed=1))


class TestRebuild:
    def test_built_in_state_is_replaced_and_its_buffers_stay(self):
        module, recipe = _linear(), DelayedScaling()
        _run(module, recipe, noise(TOKENS, WIDTH, seed=1).requires_grad_())
        before = dict(module.fp8_meta)
        buffers = {
            key: (before[key].scale, before[key].amax_history, before[key].scale.clone())
            for key in ("scaling_fwd", "scaling_bwd")
        }
        module.output_quantizer_role = QuantizerRole("linear", "input", "next")
        assert not module.fp8_meta_tensors_initialized
        module.init_fp8_meta_tensors(recipe)
        for key, (scale, history, values) in buffers.items():
            after = module.fp8_meta[key]
            assert after is not before[key]
            assert after.scale is scale
            assert after.amax_history is history
            assert torch.equal(after.scale, values)

    def test_custom_state_hands_on_its_inner_state(self):
        module, recipe = _linear(), CustomRecipe(delayed_scaling_factory)
        _run(module, recipe, noise(TOKENS, WIDTH, seed=1).requires_grad_())
        before = module.fp8_meta["scaling_fwd"]
        inner = before.delayed
        module.output_quantizer_role = QuantizerRole("linear", "input", "next")
        module.init_fp8_meta_tensors(recipe)
        after = module.fp8_meta["scaling_fwd"]
        assert after is not before
        assert after.delayed is inner

    def test_another_history_length_keeps_scales(self):
        module = _linear()
        _run(module, DelayedScaling(amax_history_len=4), noise(TOKENS, WIDTH, seed=1))
        scale = module.fp8_meta["scaling_fwd"].scale.clone()
        assert (scale[:2] != 1).all()
        with torch.no_grad(), autocast(recipe=DelayedScaling(amax_history_len=2)):
            module(noise(TOKENS, WIDTH, seed=2))
        state = module.fp8_meta["scaling_fwd"]
        assert state.amax_history.shape == (2, 3)
        assert torch.equal(state.scale, scale)


class TestSteps:
    def test_forward_scales_move_when_the_outermost_region_ends(self):
        module, recipe = _linear(), DelayedScaling()
        x = noise(TOKENS, WIDTH, seed=1)
        with autocast(recipe=recipe):
            with autocast(recipe=recipe):
                module(x)
            assert torch.equal(module.fp8_meta["scaling_fwd"].scale, torch.ones(3))
        assert not torch.equal(module.fp8_meta["scaling_fwd"].scale, torch.ones(3))

    def test_without_gradients_nothing_moves(self):
        module = _linear()
        with torch.no_grad(), autocast(recipe=DelayedScaling()):
            module(noise(TOKENS, WIDTH, seed=1))
        assert torch.equal(module.fp8_meta["scaling_fwd"].scale, torch.ones(3))

    def test_backward_scales_move_once_the_first_module_is_done(self):
        """The first module of the region is the last to run backward."""
        first, second = _linear("first"), _linear("second")
        seen = {}

        def remember(grad):
            seen["between"] = second.fp8_meta["scaling_bwd"].scale.clone()

        with autocast(recipe=DelayedScaling()):
            hidden = first(noise(TOKENS, WIDTH, seed=1).requires_grad_())
            hidden.register_hook(remember)
            y = second(hidden)
        y.backward(noise(*y.shape, seed=2))
        assert torch.equal(seen["between"], torch.ones(2))
        for module in (first, second):
            assert module.fp8_meta["scaling_bwd"].scale[0] != 1

    def test_unused_slots_keep_their_state(self):
        module = _linear()
        _run(module, DelayedScaling(), noise(TOKENS, WIDTH, seed=1).requires_grad_())
        assert module.fp8_meta["scaling_fwd"].scale[2] == 1
        assert module.fp8_meta["scaling_bwd"].scale[1] == 1

    def test_calibration_records_amaxes_and_quantizes_nothing(self):
        module, x = _linear(), noise(TOKENS, WIDTH, seed=1)
        plain = module(x)
        with autocast(enabled=False, calibrating=True, recipe=DelayedScaling()):
            y = module(x)
        assert torch.equal(y, plain)
        history = module.fp8_meta["scaling_fwd"].amax_history[0]
        assert history[0] == x.abs().max().float()
        assert history[1] == module.weight.detach().abs().max().float()

    def test_recipes_of_another_class_warn(self):
        module = _linear()
        _run(module, DelayedScaling(), noise(TOKENS, WIDTH, seed=1))
        with pytest.warns(UserWarning, match="Recipe type changed from DelayedScaling to Float8C"):
            _run(module, Float8CurrentScaling(), noise(TOKENS, WIDTH, seed=1))


def test_is_first_microbatch_keeps_the_quantized_weight():
    """Within a step the weight is quantized once; a change in between goes unnoticed."""
    module, recipe, x = _linear(), Float8CurrentScaling(), noise(TOKENS, WIDTH, seed=1)
    with autocast(recipe=recipe):
        first = module(x, is_first_microbatch=True)
        with torch.no_grad():
            module.weight.mul_(3)
        second = module(x, is_first_microbatch=False)
        third = module(x, is_first_microbatch=True)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_a_forward_pass_without_gradients_leaves_the_step_to_the_next():
    module, recipe = _linear(), DelayedScaling()
    x = noise(TOKENS, WIDTH, seed=1)
    with autocast(recipe=recipe):
        with torch.no_grad():
            module(x)
        y = module(x)
    y.backward(noise(*y.shape, seed=2))
    assert module.fp8_meta["scaling_bwd"].scale[0] != 1


def test_a_copy_has_a_state_of_its_own():
    module, recipe = _linear(), DelayedScaling()
    _run(module, recipe, noise(TOKENS, WIDTH, seed=1))
    other = copy.deepcopy(module)
    before = module.fp8_meta["scaling_fwd"].scale.clone()
    _run(other, recipe, 8 * noise(TOKENS, WIDTH, seed=1))
    assert not torch.equal(other.fp8_meta["scaling_fwd"].scale, before)
    assert torch.equal(module.fp8_meta["scaling_fwd"].scale, before)
