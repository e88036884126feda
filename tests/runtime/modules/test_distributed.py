"""Amax reduction over the ranks of real process groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from qrole.autocasting import autocast
from qrole.dtypes import DType
from qrole.factories.builtin import delayed_scaling_factory
from qrole.modules import Linear
from qrole.quantizers import Float8CurrentScalingQuantizer
from qrole.recipes import CustomRecipe, DelayedScaling

RANKS = 2
#: Largest input element of each rank, and of its output gradient.
INPUT_AMAX = (2.0, 8.0)
GRAD_AMAX = (16.0, 0.5)


def _train(recipe, rank: int) -> dict[str, list[float]]:
    module = Linear(16, 16, bias=False, params_dtype=torch.float32)
    with torch.no_grad():
        module.weight.fill_(0.25)
    x = torch.zeros(16, 16)
    x[0, 0] = INPUT_AMAX[rank]
    with autocast(recipe=recipe, amax_reduction_group=dist.group.WORLD):
        y = module(x.requires_grad_())
    y.backward(torch.full_like(y, GRAD_AMAX[rank]))
    forward, backward = (module.fp8_meta[f"scaling_{mode}"] for mode in ("fwd", "bwd"))
    forward, backward = (getattr(state, "delayed", state) for state in (forward, backward))
    return {"forward": forward.scale.tolist()[:2], "backward": backward.scale.tolist()[:1]}


def _current(rank: int) -> float:
    quantizer = Float8CurrentScalingQuantizer(
        DType.kFloat8E4M3, device="cuda", with_amax_reduction=True
    )
    x = torch.zeros(16, 16)
    x[0, 0] = INPUT_AMAX[rank]
    scale_inv = quantizer(x).rowwise_scale_inv
    assert scale_inv is not None
    return scale_inv.item()


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS
    )
    try:
        results = {
            "built-in": _train(DelayedScaling(), rank),
            "custom": _train(CustomRecipe(delayed_scaling_factory), rank),
            "alone": _train(DelayedScaling(reduce_amax=False), rank),
            "current": _current(rank),
        }
    finally:
        dist.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps(results), encoding="utf-8")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each of two processes computed on its own data."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(_rank, args=(str(folder),), nprocs=RANKS)
    return [
        json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(RANKS)
    ]


@pytest.mark.slow
class TestTwoRanks:
    @pytest.mark.parametrize("recipe", ["built-in", "custom"])
    def test_scales_come_from_the_largest_amax_of_all_ranks(self, results, recipe):
        """448 / max(2, 8) = 56, the weight's 448 / 0.25 = 1792, 57344 / max(16, 0.5) = 3584."""
        for rank in range(RANKS):
            assert results[rank][recipe] == {"forward": [56.0, 1792.0], "backward": [3584.0]}

    def test_without_reduction_each_rank_keeps_to_itself(self, results):
        assert [r["alone"]["forward"][0] for r in results] == [224.0, 56.0]
        assert [r["alone"]["backward"][0] for r in results] == [3584.0, 114688.0]

    def test_current_scaling_reduces_before_it_quantizes(self, results):
        assert [r["current"] for r in results] == [torch.tensor(1 / 56).item()] * RANKS
