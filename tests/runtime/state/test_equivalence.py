"""A factory and the built-in recipe that it mirrors: equal quantizers, equal bits."""

import pytest
import torch

from qrole import gemm
from qrole.factories import builtin
from qrole.recipes import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from qrole.roles import QuantizerRole
from qrole.state import RecipeState

PAIRS = {
    "delayed": (builtin.delayed_scaling_factory, DelayedScaling),
    "current": (builtin.current_scaling_factory, Float8CurrentScaling),
    "mxfp8": (builtin.mxfp8_factory, MXFP8BlockScaling),
    "block": (builtin.float8_block_scaling_factory, Float8BlockScaling),
    "nvfp4": (builtin.nvfp4_factory, NVFP4BlockScaling),
}
FORWARD = [QuantizerRole("linear", t, "layer") for t in ("input", "weight")] + [None]
BACKWARD = [QuantizerRole("linear", "grad_output", "layer"), None]
#: Boundary slots have the role None, on which a factory sees no direction.
BOUNDARIES_DIFFER = {
    "delayed": (),
    "current": (("FP8 current E4M3", "FP8 current E5M2"),),
    "mxfp8": (),
    "block": (),
    "nvfp4": (("NVFP4 RHT", "NVFP4 RHT SR"),),
}


def _quantizers(recipe):
    return [
        quantizer
        for mode, roles in (("forward", FORWARD), ("backward", BACKWARD))
        for quantizer in RecipeState.create(
            recipe, mode=mode, num_quantizers=len(roles), roles=roles
        ).make_quantizers()
    ]


def _stressed_gradient(rows, columns):
    """Not constant, and with columns far above and below the rest."""
    dy = torch.randn(rows, columns, generator=torch.Generator().manual_seed(3))
    dy[:, ::7] *= 1e8
    dy[:, 3::7] *= 1e-8
    return dy.bfloat16()


def _bits(recipe):
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, 128, generator=generator).bfloat16() for n in (32, 96))
    qx, qw, _, qdy, _ = _quantizers(recipe)
    torch.manual_seed(11)
    x, w, dy = qx(x), qw(w), qdy(_stressed_gradient(32, 96))
    return gemm.fprop(x, w), gemm.dgrad(dy, w), gemm.wgrad(dy, x)


@pytest.mark.parametrize("name", PAIRS)
def test_equal_quantizers(name):
    factory, recipe = PAIRS[name]
    ours, built_in = _quantizers(CustomRecipe(factory)), _quantizers(recipe())
    differing = tuple((a.label, b.label) for a, b in zip(ours, built_in, strict=True) if a != b)
    assert differing == BOUNDARIES_DIFFER[name]
    for slot in (0, 1, 3):
        assert ours[slot] == built_in[slot]


@pytest.mark.parametrize("name", PAIRS)
def test_equal_bits(name):
    factory, recipe = PAIRS[name]
    for ours, built_in in zip(_bits(CustomRecipe(factory)), _bits(recipe()), strict=True):
        assert torch.equal(ours, built_in)
