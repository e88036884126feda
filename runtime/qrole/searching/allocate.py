"""Choosing one candidate per unit under a size: the multiple-choice knapsack on convex hulls.

Each unit offers (bytes, error) per candidate. Only the lower convex hull of a unit's offers can be
best for some price of a byte; walking all hulls from their cheapest ends, steepest step first,
visits the optimal choices of the relaxed problem. What is left of the budget at the end is filled
with the best single steps that still fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qrole.errors import NothingMatchedError

__all__ = ["Choice", "Offer", "front", "under_size"]


@dataclass(frozen=True)
class Offer:
    """What one candidate costs and does for one unit.

    Invariants: `nbytes >= 0`, `error >= 0`.

    Attributes:
        candidate: Index of the candidate.
        nbytes: Size of the unit's weights in it.
        error: Error that it adds; errors of units add up.
    """

    candidate: int
    nbytes: int
    error: float

    def __post_init__(self) -> None:
        assert self.nbytes >= 0, "nbytes >= 0"
        assert self.error >= 0, "error >= 0"


@dataclass(frozen=True)
class Choice:
    """One candidate per unit.

    Attributes:
        candidates: Index of the candidate, per unit.
        nbytes: Size of all units.
        error: Sum of the units' errors: the prediction.
    """

    candidates: tuple[int, ...]
    nbytes: int
    error: float


def front(offers: Sequence[Sequence[Offer]]) -> list[Choice]:
    """Choices from the smallest to the most exact, no choice worse than another in both.

    Args:
        offers: Per unit, one offer per candidate that may be used there.

    Raises:
        NothingMatchedError: There is no unit, or a unit without offers.
    """
    if not offers or not all(offers):
        raise NothingMatchedError(
            "there is a layer for which no candidate can be used"
            if offers
            else "there is no layer to choose a format for",
            expected="at least one candidate per layer",
            hint="add a candidate that the engine loads and the shapes fit, such as high_precision",
        )
    hulls = [_hull(unit) for unit in offers]
    steps = sorted(
        (
            (_slope(hull[i], hull[i + 1]), unit, i)
            for unit, hull in enumerate(hulls)
            for i in range(len(hull) - 1)
        ),
        key=lambda step: (-step[0], step[1], step[2]),
    )
    at = [0] * len(hulls)
    choices = [_choice(hulls, at)]
    for _, unit, i in steps:
        at[unit] = i + 1
        choices.append(_choice(hulls, at))
    return choices


def under_size(offers: Sequence[Sequence[Offer]], nbytes: int) -> Choice:
    """The best choice that the walk finds within a size.

    Raises:
        NothingMatchedError: Even the smallest candidates are larger.
    """
    choices = front(offers)
    fitting = [choice for choice in choices if choice.nbytes <= nbytes]
    if not fitting:
        raise NothingMatchedError(
            f"the smallest choice takes {choices[0].nbytes:,} bytes, {nbytes:,} were allowed",
            expected="a size that the smallest candidate fits",
            hint="allow more, or add a smaller candidate",
        )
    best = min(fitting, key=lambda choice: (choice.error, choice.nbytes))
    return _fill(offers, best, nbytes)


def _hull(unit: Sequence[Offer]) -> list[Offer]:
    """The lower convex hull: rising size, falling error, falling slopes."""
    hull: list[Offer] = []
    for offer in sorted(unit, key=lambda o: (o.nbytes, o.error)):
        if hull and offer.error >= hull[-1].error:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], offer):
            hull.pop()
        if hull and hull[-1].nbytes == offer.nbytes:
            hull.pop()
        hull.append(offer)
    return hull


def _slope(smaller: Offer, larger: Offer) -> float:
    """Error saved per byte."""
    gained = larger.nbytes - smaller.nbytes
    return (smaller.error - larger.error) / gained if gained else float("inf")


def _choice(hulls: Sequence[Sequence[Offer]], at: Sequence[int]) -> Choice:
    return _of([hull[i] for hull, i in zip(hulls, at, strict=True)])


def _of(picked: Sequence[Offer]) -> Choice:
    return Choice(
        tuple(offer.candidate for offer in picked),
        sum(offer.nbytes for offer in picked),
        sum(offer.error for offer in picked),
    )


def _fill(offers: Sequence[Sequence[Offer]], choice: Choice, nbytes: int) -> Choice:
    """Takes single steps that still fit, the most error per byte first."""
    picked = [
        next(offer for offer in unit if offer.candidate == candidate)
        for unit, candidate in zip(offers, choice.candidates, strict=True)
    ]
    while True:
        left = nbytes - sum(offer.nbytes for offer in picked)
        steps = [
            (_slope(picked[i], offer), i, offer)
            for i, unit in enumerate(offers)
            for offer in unit
            if offer.error < picked[i].error and offer.nbytes - picked[i].nbytes <= left
        ]
        if not steps:
            return _of(picked)
        _, i, offer = max(steps, key=lambda step: (step[0], -step[1]))
        picked[i] = offer
