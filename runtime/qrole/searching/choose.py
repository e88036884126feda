"""From the errors of units to the choice within the budget, its baselines and its rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qrole.errors import NothingMatchedError, UsageError
from qrole.folding import block_of
from qrole.searching.allocate import Choice, Offer, front, under_size
from qrole.searching.measure import Measured, ModelMeter
from qrole.searching.result import Budget, Point, SearchResult
from qrole.searching.rules_text import rules_text
from qrole.searching.task import Task
from qrole.searching.usable import nbytes_of

__all__ = ["Chooser"]


@dataclass(frozen=True)
class Chooser:
    """From errors per unit to the choice within the budget."""

    task: Task
    errors: dict[tuple[int, int], Measured]
    budget: Budget
    meter: ModelMeter | None
    metric: str

    def result(self, facts: dict[str, Any], reused: int) -> SearchResult:
        """Chooses, runs the choice and its baselines, and writes the rules."""
        offers = [
            [Offer(c, self._nbytes(u, c), self.errors[u, c].error) for c in usable]
            for u, usable in enumerate(self.task.allowed)
        ]
        choices = front(offers)
        chosen, measured = self._choose(offers, choices)
        found = self._point("found", chosen, measured or self._measure(chosen))
        baselines = [
            self._point(n, c, self._measure(c)) for n, c in self._baselines(offers, chosen)
        ]
        return SearchResult(
            self.task.loaded.spec,
            self._rules(chosen, found, facts),
            found,
            tuple(baselines),
            tuple(self._point(f"front {i}", c, None) for i, c in enumerate(choices)),
            self.metric,
            {why: [u.name for u in some] for why, some in self.task.kept.items()},
            self.task.left_out,
            reused,
            facts,
        )

    def _choose(
        self, offers: list[list[Offer]], choices: list[Choice]
    ) -> tuple[Choice, Measured | None]:
        numel = sum(unit.numel for unit in self.task.units)
        if self.budget.bits is not None:
            return under_size(offers, int(self.budget.bits * numel / 8)), None
        if self.budget.nbytes is not None:
            return under_size(offers, self.budget.nbytes - self._undecided(numel)), None
        assert self.budget.kl is not None
        return self._smallest_within(choices, self.budget.kl)

    def _smallest_within(self, choices: list[Choice], kl: float) -> tuple[Choice, Measured]:
        """The smallest point of the front whose measured KL keeps the budget, by bisection."""
        best: tuple[Choice, Measured] | None = None
        low, high = 0, len(choices) - 1
        while low <= high:
            middle = (low + high) // 2
            measured = self._measure(choices[middle])
            assert measured is not None
            if measured.kl is None:
                raise UsageError(
                    "a KL was asked for, and the model's output is no logits",
                    expected="a budget in bits or bytes",
                    hint="pass --bits or --size",
                )
            if measured.kl <= kl:
                best, high = (choices[middle], measured), middle - 1
            else:
                low = middle + 1
        if best is None:
            raise NothingMatchedError(
                f"even the most exact choice has a KL above {kl:g}",
                expected="a KL that the candidates can reach",
                hint="allow more, or add a more exact candidate such as high_precision",
            )
        return best

    def _baselines(self, offers: list[list[Offer]], chosen: Choice) -> list[tuple[str, Choice]]:
        names = self.task.names
        everywhere = set.intersection(*(set(usable) for usable in self.task.allowed))
        uniform = [(c, self._uniform(offers, c)) for c in sorted(everywhere)]
        found = [(f"uniform {names[c]}", choice) for c, choice in uniform]
        if len(uniform) > 1:
            small = min(uniform, key=lambda pair: pair[1].nbytes)[0]
            for c, choice in uniform:
                if c != small and choice.nbytes > chosen.nbytes:
                    n, edges = self._first_and_last(offers, small, c, chosen.nbytes)
                    if n:
                        found.append(
                            (f"first and last {n} blocks {names[c]}, rest {names[small]}", edges)
                        )
        return found

    def _uniform(self, offers: list[list[Offer]], candidate: int) -> Choice:
        return _choice([_offer(unit, candidate) for unit in offers])

    def _first_and_last(
        self, offers: list[list[Offer]], small: int, large: int, nbytes: int
    ) -> tuple[int, Choice]:
        """As many blocks from both ends in the larger format as the size allows."""
        of_unit = [block_of(unit.layers[0][0])[0] for unit in self.task.units]
        blocks = list(dict.fromkeys(of_unit))
        best, count = self._uniform(offers, small), 0
        for n in range(1, len(blocks) // 2 + 1):
            edge = {*blocks[:n], *blocks[-n:]}
            picked = [
                _offer(unit, large if block in edge else small)
                for unit, block in zip(offers, of_unit, strict=True)
            ]
            choice = _choice(picked)
            if choice.nbytes > nbytes:
                break
            best, count = choice, n
        return count, best

    def _measure(self, choice: Choice) -> Measured | None:
        if self.meter is None:
            return None
        return self.meter.measure(self.task.plan_of(dict(enumerate(choice.candidates))))

    def _nbytes(self, unit: int, candidate: int) -> int:
        return nbytes_of(self.task.units[unit], self.task.plans[candidate])

    def _undecided(self, decided: int) -> int:
        module = self.task.loaded.module
        assert module is not None
        item = next(module.parameters()).element_size()
        return (self.task.inventory.numel - decided) * item

    def _point(self, name: str, choice: Choice, measured: Measured | None) -> Point:
        numel = sum(unit.numel for unit in self.task.units)
        counts: dict[str, int] = {}
        for unit, c in zip(self.task.units, choice.candidates, strict=True):
            counts[self.task.names[c]] = counts.get(self.task.names[c], 0) + len(unit.layers)
        bits = 8 * choice.nbytes / numel
        return Point(name, choice.nbytes, bits, choice.error, measured, counts)

    def _rules(self, choice: Choice, found: Point, facts: dict[str, Any]) -> str:
        task = self.task

        def evidence(unit: int, candidate: int, default: int) -> tuple[float, str]:
            here = self.errors[unit, candidate].error
            text = f"{task.units[unit].name}: {self.metric} {here:.3g} alone"
            there = self.errors.get((unit, default))
            if there is None:
                return 0.0, f"{text}; {task.names[default]} cannot be used"
            return there.error - here, f"{text}, {there.error:.3g} in {task.names[default]}"

        result = found.measured.error if found.measured is not None else found.predicted
        header = [
            f"Formats for {task.loaded.spec}: {found.bits:.3f} bits per weight, "
            f"{self.metric} {result:.4g}.",
            f"Chosen from {', '.join(task.names)} by `qrole search`"
            + (f" on {facts['samples']} samples of {facts['source']}." if facts else "."),
        ]
        return rules_text(
            task.units, task.names, choice.candidates, task.plans, evidence, task.kept, header
        )


def _offer(unit: Sequence[Offer], candidate: int) -> Offer:
    return next(offer for offer in unit if offer.candidate == candidate)


def _choice(picked: Sequence[Offer]) -> Choice:
    return Choice(
        tuple(offer.candidate for offer in picked),
        sum(offer.nbytes for offer in picked),
        sum(offer.error for offer in picked),
    )
