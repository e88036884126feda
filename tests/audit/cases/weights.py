"""Weights whose values can't be quantized."""

from __future__ import annotations

import torch
from torch import nn

from qrole.factories.builtin import mxfp8_factory
from tests.audit.building import case, planned


def layer(value: float | None) -> nn.Module:
    """One bf16 layer; with a value, that is its first row."""
    root = nn.ModuleDict({"fc": nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)})
    if value is not None:
        with torch.no_grad():
            root["fc"].weight[0] = value
    return root


def zeros() -> nn.Module:
    root = layer(None)
    nn.init.zeros_(root["fc"].weight)
    return root


CASES = [
    case(
        "NaN in a weight",
        "QR507",
        planned(lambda: layer(float("nan")), mxfp8_factory),
        planned(lambda: layer(None), mxfp8_factory),
    ),
    case(
        "infinities in a weight",
        "QR507",
        planned(lambda: layer(float("-inf")), mxfp8_factory),
        planned(lambda: layer(1.0), mxfp8_factory),
    ),
    case(
        "a layer that was never loaded",
        "QR508",
        planned(zeros, mxfp8_factory),
        planned(lambda: layer(0.0), mxfp8_factory),
    ),
]
