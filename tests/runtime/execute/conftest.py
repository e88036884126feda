"""Plans for small modules, and the three GEMMs written out as what runs are held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from qrole import gemm
from qrole.emitters import walk
from qrole.plans import Plan, build_plan
from qrole.plugins import load_factory
from qrole.quantizers.base import Quantizer
from qrole.roles import QuantizerRole

FACTORIES = ("current_scaling", "mxfp8", "nvfp4_1d_weight", "float8_block_scaling")


@pytest.fixture(params=FACTORIES)
def factory(request: pytest.FixtureRequest) -> str:
    """Name of a factory without random bits in the forward pass."""
    return str(request.param)


def plan_of(module: nn.Module, factory: str) -> Plan:
    return build_plan(walk(module), load_factory(factory))


@dataclass(frozen=True)
class Products:
    """What one linear layer gives by the definition of its three products."""

    y: torch.Tensor
    dx: torch.Tensor
    dw: torch.Tensor


def quantizer(factory: str, operand: str, *, rowwise: bool, columnwise: bool) -> Quantizer:
    made = load_factory(factory).function(QuantizerRole("linear", operand, ""))
    assert isinstance(made, Quantizer)
    made.set_usage(rowwise=rowwise, columnwise=columnwise)
    return made


def products(
    factory: str,
    x_MK: torch.Tensor,
    w_NK: torch.Tensor,
    dy_MN: torch.Tensor,
    generator: Callable[[], torch.Generator] | None = None,
) -> Products:
    """Y = Qrow(x) Qrow(w)^T, dx = Qrow(dy) Qcol(w), dw = Qcol(dy)^T Qcol(x)."""
    qx = quantizer(factory, "input", rowwise=True, columnwise=True)(x_MK)
    qw = quantizer(factory, "weight", rowwise=True, columnwise=True)(w_NK)
    of_dy = quantizer(factory, "grad_output", rowwise=True, columnwise=True)
    qdy = of_dy.quantize(dy_MN, generator=generator() if generator is not None else None)
    return Products(gemm.fprop(qx, qw), gemm.dgrad(qdy, qw), gemm.wgrad(qdy, qx))


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
