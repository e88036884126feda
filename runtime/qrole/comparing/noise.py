"""How much of a difference between two runs is chance, learned from a few repeated seeds.

Two seeds say next to nothing of one error's spread, but all errors of a run are repeated together:
each spread is drawn towards the usual one, by as much as the spreads resemble each other (G. Smyth,
"Linear models and empirical Bayes methods", 2004, section 6.2), and judged by Student's t.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection
from dataclasses import dataclass

import torch

__all__ = ["Noise", "t_quantile"]

#: Chance that a comparison of equal quality fails in any of its errors.
_FALSE_FAILURES = 0.01
_MOST_DF = 1e4


@dataclass(frozen=True)
class Noise:
    """What chance does to the errors of a candidate.

    Attributes:
        df: Degrees of freedom behind each measured spread.
        usual: Variance that the errors have usually, relative to their squares.
        weight: Degrees of freedom that the usual variance counts as.
        factor: Standard deviations of a difference that are let pass.
    """

    df: int
    usual: float
    weight: float
    factor: float

    @classmethod
    def of(cls, spreads: Collection[float], df: int) -> Noise:
        """Learned from the relative standard deviations of all errors that vary, each > 0."""
        usual, weight = _usual([spread**2 for spread in spreads], df)
        tail = _FALSE_FAILURES / len(spreads)
        return cls(df, usual, weight, t_quantile(tail, df + weight))

    def allowed(self, spread: float) -> float:
        """Relative growth from one run to another that chance explains.

        Args:
            spread: Relative standard deviation of this error over the seeds.
        """
        variance = (self.weight * self.usual + self.df * spread**2) / (self.weight + self.df)
        return self.factor * math.sqrt(2.0 * variance)


def _usual(variances: list[float], df: int) -> tuple[float, float]:
    """The usual variance, and its weight in degrees of freedom: at most those of all together.

    The logarithms of variances from `df` degrees of freedom scatter by trigamma(df / 2); what they
    scatter beyond is how much the true ones differ. Few seeds tell that badly, so it is taken one
    standard error larger: too much weight would fail equal runs.
    """
    if len(variances) < 2:
        return 0.0, 0.0
    own = torch.tensor(df / 2, dtype=torch.float64)
    logs = [math.log(variance) - _log_bias(own) for variance in variances]
    scatter, kurtosis = _trigamma(own).item(), torch.polygamma(3, own).item()
    standard_error = math.sqrt((kurtosis + 2 * scatter**2) / len(logs))
    beyond = statistics.variance(logs) - scatter + standard_error
    halves = torch.logspace(math.log10(_MOST_DF / 2), -2, 2000, dtype=torch.float64)
    nearest = min(int(torch.searchsorted(_trigamma(halves), beyond)), len(halves) - 1)
    half = min(float(halves[nearest]), len(variances) * df / 2)
    center = statistics.fmean(logs) + _log_bias(torch.tensor(half, dtype=torch.float64))
    return math.exp(center), 2 * half


def _log_bias(half_df: torch.Tensor) -> float:
    """Mean logarithm of a measured variance, less that of the true one."""
    return float(torch.digamma(half_df) - torch.log(half_df))


def _trigamma(x: torch.Tensor) -> torch.Tensor:
    return torch.polygamma(1, x)


def t_quantile(tail: float, df: float) -> float:
    """What Student's t of `df` degrees of freedom exceeds with the probability `tail` <= 1/2.

    With t = sqrt(df) tan(a) the density of a is proportional to cos(a)^(df - 1).
    """
    df = min(df, _MOST_DF)
    angles = torch.linspace(math.pi / 2, 0, 200_001, dtype=torch.float64)
    above = torch.cumulative_trapezoid(torch.cos(angles) ** (df - 1))
    found = int(torch.searchsorted(above / above[-1], 2 * tail))
    return math.sqrt(df) * math.tan(float(angles[found + 1]))
