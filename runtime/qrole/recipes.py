"""Recipes: which quantizers a whole training run uses."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["Format"]


class FormatRange(NamedTuple):
    """Largest values of a format: of tensors of the forward and of the backward pass."""

    max_fwd: float
    max_bwd: float


class Format(Enum):
    """Element format of the forward and the backward pass."""

    E2M1 = FormatRange(6, 6)
    E4M3 = FormatRange(448, 448)
    E5M2 = FormatRange(57344, 57344)
    HYBRID = FormatRange(448, 57344)
