"""An emitter for a module class of this package's own."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from qrole.emitters import EmitOptions, Emitter, class_name, linear_slots
from qrole.roles import Slot


class ScaledLinear(nn.Module):
    """`scale * (x @ kernel.T)`: a linear layer that is no `nn.Linear`."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(out_features, in_features) * 0.1)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) to (..., out)."""
        return self.scale * nn.functional.linear(x, self.kernel)


class ScaledLinearEmitter(Emitter):
    """Slots of `ScaledLinear`."""

    name: ClassVar[str] = "example scaled linear"

    def slots(self, path: str, module: nn.Module, options: EmitOptions) -> list[Slot] | None:
        """Three slots, or None for any other class."""
        if not isinstance(module, ScaledLinear):
            return None
        return linear_slots(
            path,
            class_name(module),
            weight=f"{path}.kernel" if path else "kernel",
            shape=tuple(module.kernel.shape),
        )
