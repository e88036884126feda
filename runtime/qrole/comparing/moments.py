"""Streaming error statistics: constant memory however many tensors are added."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from qrole.comparing.difference import Difference, difference_of

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

    def add(self, reference: torch.Tensor, test: torch.Tensor) -> Difference:
        """Adds a pair of tensors of equal shape, any floating dtype and strides."""
        found = difference_of(reference.detach(), test.detach())
        self.numel += found.numel
        self.reference_sq += found.reference_sq
        self.test_sq += found.test_sq
        self.error_sq += found.error_sq
        self.max_abs_err = max(self.max_abs_err, found.max_abs_err)
        if not math.isfinite(found.error_sq):
            self.max_abs_err = math.inf
            self.nonfinite += int((~torch.isfinite(test)).sum())
        return found

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
    low: float = math.inf
    high: float = 0.0

    def add(self, values: torch.Tensor) -> None:
        """Adds the values of an fp32 tensor of any shape."""
        facts = difference_of(values, values)
        self.count += facts.nonzero
        self.total += torch.sum(values, dtype=torch.float64).item()
        self.total_sq += facts.reference_sq
        self.low, self.high = min(self.low, facts.smallest), max(self.high, facts.amax)

    def merge(self, other: Spread) -> None:
        """Adds all values of another."""
        self.count += other.count
        self.total += other.total
        self.total_sq += other.total_sq
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    @property
    def std(self) -> float | None:
        """Standard deviation, n in the denominator."""
        if not self.count:
            return None
        mean = self.total / self.count
        return math.sqrt(max(self.total_sq / self.count - mean * mean, 0.0))
