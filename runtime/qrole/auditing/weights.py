"""QR5xx: weights whose values can't be quantized sensibly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qrole.auditing.registry import Hit, Severity, check

__all__ = ["WeightFacts", "WeightsSubject"]


@dataclass(frozen=True)
class WeightFacts:
    """What is to know of one weight's values.

    Attributes:
        name: Parameter or tensor name.
        numel: Elements.
        nan: Number of NaN.
        inf: Number of infinities.
        zero: The values are all zero.
    """

    name: str
    numel: int
    nan: int
    inf: int
    zero: bool

    @property
    def module(self) -> str:
        """The module that holds it."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class WeightsSubject:
    """The weights of a plan's slots whose values were read."""

    weights: tuple[WeightFacts, ...]


@check("QR507", Severity.ERROR)
def not_finite(subject: WeightsSubject) -> Iterator[Hit]:
    """A weight holds NaN or infinities.

    The amax of such a tensor is no number to scale by: the scale becomes NaN, or every finite value
    quantizes to zero. It is the checkpoint that is broken.

    Fetch the checkpoint again, or find the step in which training broke.
    """
    for weight in subject.weights:
        if weight.nan or weight.inf:
            found = [f"{n} {kind}" for n, kind in ((weight.nan, "NaN"), (weight.inf, "inf")) if n]
            yield Hit(
                weight.name,
                f"{' and '.join(found)} of {weight.numel} values",
                "fetch the checkpoint again",
                weight.module,
            )


@check("QR508", Severity.WARNING)
def all_zero(subject: WeightsSubject) -> Iterator[Hit]:
    """A weight is zero throughout.

    An amax of zero has no scale. Writers that do not expect it store an infinite or zero scale, and
    the engine computes NaN. A layer that was never trained or never loaded looks like this.

    Check that the checkpoint is complete and that its names fit the model.
    """
    for weight in subject.weights:
        if weight.zero and weight.numel:
            yield Hit(
                weight.name,
                "all values are zero",
                "check that the checkpoint is complete",
                weight.module,
            )
