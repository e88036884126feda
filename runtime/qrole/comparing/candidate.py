"""One plan and everything measured of it, streaming over batches."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from qrole.comparing.meter import Meter
from qrole.comparing.moments import ErrorMoments
from qrole.execute import Layer, PlanState
from qrole.plans import Plan

__all__ = ["Candidate", "OutputStats"]


@dataclass
class OutputStats:
    """The model's output against the reference run's.

    Attributes:
        error: The tensor, element by element.
        kl_sum: Sum over positions of KL(reference || candidate), nats.
        agreements: Positions with the same best class.
        positions: Positions; 0 where the output is no logits.
        loss_sum: Sum over batches.
    """

    error: ErrorMoments = field(default_factory=ErrorMoments)
    kl_sum: float = 0.0
    agreements: int = 0
    positions: int = 0
    loss_sum: float = 0.0


@dataclass
class Candidate:
    """One plan and everything measured of it so far.

    Attributes:
        name: What reports call it.
        plan: The plan.
        state: What its quantizers remember between batches.
        meter: Measures slots, GEMMs and layers; None measures the model as a whole only.
        output: The model's output.
        grads: Gradients, per parameter.
        rows: Rows per layer and expert.
        readers: Functions that read a weight and were no product.
        first_nonfinite: Where NaN or infinity first appeared; `""` if nowhere.
    """

    name: str
    plan: Plan
    state: PlanState
    meter: Meter | None
    output: OutputStats = field(default_factory=OutputStats)
    grads: dict[str, ErrorMoments] = field(default_factory=lambda: defaultdict(ErrorMoments))
    rows: dict[tuple[Layer, int], int] = field(default_factory=lambda: defaultdict(int))
    readers: dict[Layer, set[str]] = field(default_factory=lambda: defaultdict(set))
    first_nonfinite: str = ""

    @classmethod
    def of(cls, plan: Plan, *, seed: int, name: str = "", detailed: bool = True) -> Candidate:
        """A candidate with nothing measured yet."""
        state = PlanState(plan, seed=seed)
        return cls(name or plan.factory.name, plan, state, Meter() if detailed else None)

    def blame(self, where: str) -> None:
        """Notes where NaN or infinity appeared, unless it had before."""
        self.first_nonfinite = self.first_nonfinite or where

    @property
    def all_grads(self) -> ErrorMoments:
        """All gradients as one vector."""
        whole = ErrorMoments()
        for moments in self.grads.values():
            whole.merge(moments)
        return whole
