"""What a search is asked and what it finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qrole.errors import UsageError
from qrole.searching.measure import Measured

__all__ = ["Budget", "Point", "SearchResult"]


@dataclass(frozen=True)
class Budget:
    """What the result may cost. Invariant: exactly one is given.

    Attributes:
        bits: Bits per element of the weights that are decided, block scales included.
        nbytes: Bytes of all parameters; those not decided count in the model's dtype.
        kl: KL to the reference, nats per position.
    """

    bits: float | None = None
    nbytes: int | None = None
    kl: float | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("bits", "nbytes", "kl") if getattr(self, name) is not None]
        if len(given) != 1:
            raise UsageError(
                f"{len(given)} budgets were given: {', '.join(given)}"
                if given
                else "no budget was given",
                expected="exactly one of bits per weight, size, and KL",
                hint="pass --bits 5.5, --size 4GB or --kl 0.02",
            )


@dataclass(frozen=True)
class Point:
    """One choice of formats for the whole model.

    Attributes:
        name: What it is: `found`, `uniform nvfp4`, `first and last 2 blocks mxfp8, rest nvfp4`, or
            a point of the front.
        nbytes: Size of the weights that are decided.
        bits: The same per element.
        predicted: Sum of the units' errors.
        measured: Errors of the model under it; None where it was not run.
        counts: Layers per candidate.
    """

    name: str
    nbytes: int
    bits: float
    predicted: float
    measured: Measured | None
    counts: dict[str, int]


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        model: How the model was named.
        rules: The text of a rules file.
        found: The choice within the budget.
        baselines: Uniform choices, and the first and last layers in a better format at most as
            large as the choice found.
        front: Choices from the smallest to the most exact, none worse than another in both.
        metric: What was minimized: `KL`, `output error`, `gradient error` or `weight noise`.
        kept: Layers that stay in high precision, by reason.
        left_out: Candidates that could not be used, by reason, with the number of units.
        reused: Measurements taken from an earlier, stopped search.
        data: What was fed; empty where no data was needed.
    """

    model: str
    rules: str
    found: Point
    baselines: tuple[Point, ...]
    front: tuple[Point, ...]
    metric: str
    kept: dict[str, list[str]]
    left_out: dict[str, int]
    reused: int
    data: dict[str, Any]

    def _repr_html_(self) -> str:
        from qrole.display import search_html

        return search_html(self)
