"""Streaming error statistics: constant memory however many tensors are added."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

__all__ = ["ErrorMoments", "Spread"]


@dataclass
class ErrorMoments:
    """How a tensor differs from its reference, over all elements added so far.

    Attributes:
        numel: Elements.
        reference_sq: Sum of the squared reference.
        test_sq: Sum of the squared tensor under test.
        error_sq: Sum of the squared difference.
        max_abs_err: Largest absolute difference.
        nonfinite: Elements of the tensor under test that are NaN or infinite.
    """

    numel: int = 0
    reference_sq: float = 0.0
    test_sq: float = 0.0
    error_sq: float = 0.0
    max_abs_err: float = 0.0
    nonfinite: int = 0

    def add(self, reference: torch.Tensor, test: torch.Tensor) -> None:
        """Adds a pair of tensors of equal shape, any floating dtype."""
        reference, test = reference.detach().float(), test.detach().float()
        error = test - reference
        self.numel += error.numel()
        if not error.numel():
            return
        self.reference_sq += _sum_sq(reference)
        self.test_sq += _sum_sq(test)
        error_sq = _sum_sq(error)
        self.error_sq += error_sq
        if math.isfinite(error_sq):
            self.max_abs_err = max(self.max_abs_err, _amax(error))
        else:
            self.nonfinite += int((~torch.isfinite(test)).sum())
            self.max_abs_err = math.inf

    def merge(self, other: ErrorMoments) -> None:
        """Adds all elements of another."""
        self.numel += other.numel
        self.reference_sq += other.reference_sq
        self.test_sq += other.test_sq
        self.error_sq += other.error_sq
        self.max_abs_err = max(self.max_abs_err, other.max_abs_err)
        self.nonfinite += other.nonfinite

    @property
    def sqnr_db(self) -> float | None:
        """10 log10(signal / noise): infinite where both are equal; None without signal."""
        if self.reference_sq == 0.0:
            return None
        if self.error_sq == 0.0:
            return math.inf
        if not math.isfinite(self.error_sq):
            return -math.inf
        return 10.0 * math.log10(self.reference_sq / self.error_sq)

    @property
    def rel_err(self) -> float | None:
        """Norm of the difference over norm of the reference; None where the reference is zero."""
        if self.reference_sq == 0.0:
            return None
        return math.sqrt(self.error_sq / self.reference_sq)

    @property
    def mse(self) -> float | None:
        """Mean squared difference."""
        return self.error_sq / self.numel if self.numel else None

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between both; from the difference, which keeps digits near 1."""
        norms = math.sqrt(self.reference_sq * self.test_sq)
        if norms == 0.0 or not math.isfinite(norms):
            return None
        dot = (self.reference_sq + self.test_sq - self.error_sq) / 2.0
        return max(-1.0, min(1.0, dot / norms))


@dataclass
class Spread:
    """Smallest, largest and standard deviation of positive values; zeros are padding."""

    count: int = 0
    total: float = 0.0
    total_sq: float = 0.0
    low: float = field(default=math.inf)
    high: float = 0.0

    def add(self, values: torch.Tensor) -> None:
        """Adds the values of a tensor of any shape."""
        values = values.detach().double().flatten()
        values = values[values > 0]
        if not values.numel():
            return
        self.count += values.numel()
        self.total += float(values.sum())
        self.total_sq += float(values.square().sum())
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))

    @property
    def std(self) -> float | None:
        """Standard deviation, n in the denominator."""
        if not self.count:
            return None
        mean = self.total / self.count
        return math.sqrt(max(self.total_sq / self.count - mean * mean, 0.0))


def _sum_sq(x: torch.Tensor) -> float:
    flat = x.reshape(-1)
    return float(torch.dot(flat, flat))


def _amax(x: torch.Tensor) -> float:
    low, high = torch.aminmax(x)
    return max(-float(low), float(high))
