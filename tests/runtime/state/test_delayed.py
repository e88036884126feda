"""Delayed scaling over many steps: known answers, the autocast step, inheritance, two ranks."""

import gc

import pytest
import torch
import torch.multiprocessing as mp

from qrole.autocasting import autocast
from qrole.recipes import DelayedScaling
from qrole.state import RecipeState, is_first_module, register, registry
from tests.kernels import golden
from tests.kernels.bitexact import assert_bits_equal


@pytest.fixture(autouse=True)
def _no_buffers_left():
    registry.reset()
    yield
    registry.reset()


def _state(recipe=None, n=3, mode="forward"):
    return RecipeState.create(recipe or DelayedScaling(), mode=mode, num_quantizers=n)


def _sees(state, index, value):
    state.make_quantizers()[index](torch.full((4, 4), float(value)))


@pytest.mark.parametrize("sequence", ["plain", "special", "tiny"])
@pytest.mark.parametrize("name", golden.INDEX["fp8_delayed_state"])
def test_known_answers_of_training(name, sequence):
    case = golden.load("fp8_delayed_state", name)
    info = case.info
    recipe = DelayedScaling(
        margin=int(info["margin"]),
        amax_history_len=int(info["amax_history_len"]),
        amax_compute_algo=info["algo"],
    )
    state = _state(recipe, 1, "forward" if info["elem"] == "e4m3" else "backward")
    history, scale = case[f"{sequence}.bulk.history"], case[f"{sequence}.bulk.scale"]
    for step, amax in enumerate(case[f"{sequence}.amax_sequence"]):
        state.amax_history[0] = amax
        state.buffers.update()
        assert_bits_equal(state.amax_history[:, 0], history[step], f"history after step {step}")
        assert_bits_equal(state.scale[0], scale[step], f"scale after step {step}")


def test_leaving_the_outermost_region_updates_forward_scales():
    state = _state(DelayedScaling(amax_history_len=4))
    register(state.buffers)
    with autocast():
        _sees(state, 0, 2.0)
        with autocast():
            _sees(state, 0, 7.0)
        assert state.scale.tolist() == [1.0] * 3, "an inner region updates nothing"
        assert state.amax_history[0].tolist() == [7.0, 0.0, 0.0]
    assert state.scale.tolist() == [64.0, 1.0, 1.0], "unused tensors keep their state"
    assert state.amax_history[:, 0].tolist() == [0.0, 0.0, 0.0, 7.0]


@pytest.mark.parametrize("region", ["no_grad", "disabled"])
def test_regions_that_update_nothing(region):
    state = _state()
    register(state.buffers)
    with torch.set_grad_enabled(region != "no_grad"), autocast(enabled=region != "disabled"):
        _sees(state, 0, 2.0)
    assert state.scale.tolist() == [1.0] * 3
    assert state.amax_history[0, 0] == 2.0


def test_backward_buffers_are_updated_on_request():
    forward, backward = _state(n=1), _state(n=1, mode="backward")
    register(forward.buffers)
    register(backward.buffers)
    _sees(forward, 0, 2.0)
    _sees(backward, 0, 2.0)
    registry.update_delayed_scaling(forward=False)
    assert forward.scale == 1.0
    assert backward.scale == 57344 / 2


def test_one_module_of_an_outermost_region_is_the_first():
    with autocast():
        assert [is_first_module(), is_first_module()] == [True, False]
        with autocast():
            assert not is_first_module()
    with autocast():
        assert is_first_module()


def test_registered_once_and_held_weakly():
    state = _state(DelayedScaling(amax_history_len=4))
    register(state.buffers)
    register(state.buffers)
    _sees(state, 0, 7.0)
    registry.update_delayed_scaling(forward=True)
    assert state.amax_history[:, 0].tolist() == [0.0, 0.0, 0.0, 7.0], "rolled once"
    del state
    gc.collect()
    registry.update_delayed_scaling(forward=True)
    assert registry._registered == []


def test_a_new_state_shares_the_buffers_of_the_old():
    old = _state()
    _sees(old, 1, 3.0)
    old.buffers.update()
    new = _state()
    assert new.inherit_state_from(old)
    assert new is not old
    assert new.scale is old.scale
    assert new.amax_history is old.amax_history
    assert new.make_quantizers()[1].scale == 448 / 3


@pytest.mark.parametrize(
    "other",
    [
        lambda: _state(n=2),
        lambda: _state(mode="backward"),
        lambda: _state(DelayedScaling(amax_history_len=8)),
    ],
    ids=["slots", "element", "history"],
)
def test_buffers_that_do_not_fit_are_not_shared(other):
    new = _state()
    assert not new.inherit_state_from(other())
    assert new.scale.tolist() == [1.0] * 3


def test_callables_of_the_recipe():
    seen = []

    def amax_of(history):
        seen.append(history.clone())
        return history.mean(0)

    def scale_of(amax, scale, largest, recipe):
        return largest / amax / 2 + scale * 0

    recipe = DelayedScaling(
        amax_history_len=2, amax_compute_algo=amax_of, scaling_factor_compute_algo=scale_of
    )
    state = _state(recipe, 1)
    _sees(state, 0, 8.0)
    state.buffers.update()
    assert state.scale == 448 / 4 / 2
    assert state.amax_history[:, 0].tolist() == [0.0, 8.0]
    state.buffers.update()
    assert [h[:, 0].tolist() for h in seen] == [[8.0, 0.0], [0.0, 8.0]], "callables always roll"


def test_a_callable_amax_with_the_built_in_scale():
    recipe = DelayedScaling(amax_compute_algo=lambda history: history[0].clone(), margin=1)
    state = _state(recipe, 2)
    _sees(state, 0, 7.0)
    state.buffers.update()
    assert state.scale.tolist() == [32.0, 1.0], "an amax of 0 leaves the scale"


def test_calibration_records_without_quantizing():
    state = _state(n=1)
    quantizer = state.make_quantizers()[0]
    quantizer.calibrate(torch.full((2, 3, 4), -5.0))
    assert state.amax_history[0, 0] == 5.0


def _rank(rank, world, file, results):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=world
    )
    together, alone = _state(n=2), _state(DelayedScaling(reduce_amax=False), 2)
    single = torch.distributed.new_group([0]), torch.distributed.new_group([1])
    own_group = _state(n=2)
    register(together.buffers)
    register(alone.buffers)
    register(own_group.buffers, single[rank])
    with autocast():
        for state in (together, alone, own_group):
            _sees(state, rank, 7.0 * (rank + 1))
    results[rank] = [s.scale.tolist() for s in (together, alone, own_group)]
    torch.distributed.destroy_process_group()


def test_two_ranks_take_the_maximum(tmp_path):
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(_rank, args=(2, tmp_path / "meeting", results), nprocs=2)
        both = [64.0, 32.0]
        assert results[0] == [both, [64.0, 1.0], [64.0, 1.0]]
        assert results[1] == [both, [1.0, 32.0], [1.0, 32.0]]
