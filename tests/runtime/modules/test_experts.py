"""Quantizers of a grouped layer's experts must suit one grouped GEMM."""

from __future__ import annotations

import pytest
import torch

from qrole.autocasting import autocast
from qrole.dtypes import DType
from qrole.errors import ConfigError, OperandError
from qrole.modules import GroupedLinear, ops
from qrole.quantizers import (
    Float8CurrentScalingQuantizer,
    HybridQuantizer,
    IdentityQuantizer,
    MXFP8Quantizer,
)
from qrole.recipes import CustomRecipe
from qrole.roles import DelayedScalingRequest

E4M3, E5M2 = DType.kFloat8E4M3, DType.kFloat8E5M2


def _mx(dtype=E4M3):
    return MXFP8Quantizer(dtype)


def _current():
    return Float8CurrentScalingQuantizer(E4M3, device="cuda")


def _hybrid(row=_mx, col=_mx, source="original"):
    return HybridQuantizer(
        rowwise_quantizer=row(), columnwise_quantizer=col(), columnwise_source=source
    )


MIXES = {
    "mix HybridQuantizer and non-hybrid quantizers": (_mx, _hybrid),
    "mix Identity-backed and quantized directions": (_mx, IdentityQuantizer),
    "use incompatible plain backend families": (_mx, _current),
    "use incompatible plain backend configurations": (_mx, lambda: _mx(E5M2)),
    "have mixed columnwise source policies": (
        _hybrid,
        lambda: _hybrid(source="rowwise_dequantized"),
    ),
    "use incompatible rowwise backend families": (_hybrid, lambda: _hybrid(row=_current)),
    "use incompatible columnwise backend configurations": (
        _hybrid,
        lambda: _hybrid(col=lambda: _mx(E5M2)),
    ),
}


def _alternating(tensor_type, makers):
    """Answers a tensor type with one maker after the other, everything else with the first."""
    asked = []

    def factory(role):
        if role is None or role.tensor_type != tensor_type:
            return makers[0]()
        asked.append(role)
        return makers[(len(asked) - 1) % len(makers)]()

    return factory


@pytest.mark.parametrize("reason", MIXES)
@pytest.mark.parametrize("operand", ["input", "weight", "grad_output"])
def test_mixes_are_refused(operand, reason):
    recipe = CustomRecipe(_alternating(operand, MIXES[reason]))
    with (
        pytest.raises(ConfigError, match=f"GroupedLinear {operand} quantizers {reason} across"),
        autocast(recipe=recipe),
    ):
        GroupedLinear(2, 32, 32)(torch.randn(32, 32), [16, 16])


def test_the_op_refuses_them_too():
    recipe = CustomRecipe(_alternating("weight", (_mx, _current)))
    with pytest.raises(ConfigError, match="GroupedLinear weight"), autocast(recipe=recipe):
        ops.GroupedLinear(2, 32, 32)(torch.randn(32, 32), torch.tensor([16, 16]))


def test_delayed_scaling_keeps_a_scale_per_expert():
    module = GroupedLinear(2, 32, 32)
    x = torch.randn(32, 32)
    x[16:] *= 64
    with autocast(recipe=CustomRecipe(lambda role: DelayedScalingRequest())):
        module(x, [16, 16])
    scale = module.fp8_meta["scaling_fwd"].delayed.scale
    assert scale.shape == (6,)
    assert scale[0] > 8 * scale[3]


def test_a_quantized_input_is_refused():
    with pytest.raises(OperandError, match="doesn't support input tensor in FP8"):
        GroupedLinear(1, 32, 32)(_mx()(torch.randn(32, 32)), [32])
