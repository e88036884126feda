"""`search`: formats per layer under a budget, from what each candidate does to each unit alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qrole.api import as_factory
from qrole.emitters import walk
from qrole.errors import NothingMatchedError, UsageError
from qrole.folding import block_of
from qrole.loading import LoadedModel, load_model
from qrole.plans import Inventory, Plan, build_plan
from qrole.plugins import Factory
from qrole.quantizers import IdentityQuantizer
from qrole.searching.allocate import Choice, Offer, front, under_size
from qrole.searching.measure import Journal, Measured, ModelMeter, weight_noise
from qrole.searching.rules_text import rules_text
from qrole.searching.units import Unit, mix, tied_to, units_of
from qrole.searching.usable import nbytes_of, why_not

__all__ = ["Budget", "Point", "SearchResult", "search"]

FactoryLike = str | Callable[..., Any] | Factory
Progress = Callable[[int, int, str], None]


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
                f"{len(given)} budgets were given" + (f": {', '.join(given)}" if given else ""),
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


def search(
    model: str | LoadedModel,
    candidates: Sequence[FactoryLike],
    budget: Budget,
    *,
    data_free: bool = False,
    backward: bool = False,
    data: Any = None,
    engines: Sequence[str] = (),
    layout: str = "compressed-tensors",
    journal: Path | None = None,
    seed: int = 0,
    trust_remote_code: bool = False,
    on_progress: Progress | None = None,
) -> SearchResult:
    """Chooses one candidate per unit so that the error is least within a budget.

    Every unit is quantized alone with every candidate and the model's error measured; these errors
    are taken to add up. The chosen mix and its baselines are then run as they are.

    Args:
        model: What the command line takes.
        candidates: Factories to choose from.
        budget: What the result may cost.
        data_free: Judge by the weights' own noise; runs nothing.
        backward: Minimize the error of the gradients instead of the output's.
        data: `qrole.comparing.DataOptions`; None takes what the model's source offers.
        engines: Engines that have to load the result.
        layout: Layout of the checkpoint for them.
        journal: File that keeps measurements for a stopped search.
        seed: Of everything random.
        trust_remote_code: Run code that a model directory brings.
        on_progress: Told of runs done, runs in total, and what is measured.

    Raises:
        UsageError: Fewer than two candidates, or a budget that needs data is asked data-free.
        NothingMatchedError: Nothing fits the budget.
    """
    factories = [as_factory(candidate) for candidate in candidates]
    _check(factories, budget, data_free)
    loaded = (
        model
        if isinstance(model, LoadedModel)
        else load_model(model, weights=True, trust_remote_code=trust_remote_code)
    )
    task = _Task.of(loaded, factories, engines, layout)
    if data_free:
        noise = _noise(task, on_progress)
        return _Chooser(task, noise, budget, None, "weight noise").result({}, 0)
    meter, facts = _meter(task, data, backward, seed)
    identity = {
        "model": loaded.spec,
        "data": facts["sha256"],
        "seed": seed,
        "backward": backward,
        "candidates": [f.sha256 + f.name for f in factories],
    }
    kept = Journal(journal or Path("qrole-search.journal"), identity)
    errors = _sensitivities(task, meter, kept, on_progress)
    result = _Chooser(task, errors, budget, meter, _metric(errors, backward)).result(
        facts, kept.reused
    )
    kept.finish()
    return result


def _check(factories: list[Factory], budget: Budget, data_free: bool) -> None:
    if len(factories) < 2:
        raise UsageError(
            f"{len(factories)} candidate was given",
            expected="two or more factories to choose from",
            hint="pass -f nvfp4 -f mxfp8",
        )
    if data_free and budget.kl is not None:
        raise UsageError(
            "a KL was asked for without running the model",
            expected="a budget in bits or bytes for a data-free search",
            hint="drop --data-free, or pass --bits",
        )


@dataclass(frozen=True)
class _Task:
    """The model and what may be chosen for its units."""

    loaded: LoadedModel
    inventory: Inventory
    base: Plan
    plans: list[Plan]
    names: list[str]
    units: list[Unit]
    allowed: list[list[int]]
    kept: dict[str, list[Unit]]
    left_out: dict[str, int]

    @classmethod
    def of(
        cls, loaded: LoadedModel, factories: list[Factory], engines: Sequence[str], layout: str
    ) -> _Task:
        if loaded.module is None:
            raise UsageError(
                f"{loaded.spec} holds weights only",
                expected="a Python file, or a directory with a config.json that names the model",
                hint="add config.json, or write a model.py whose build() loads these weights",
            )
        inventory = walk(loaded)
        plans = [build_plan(inventory, factory) for factory in factories]
        base = build_plan(inventory, Factory.of(_identity, "high precision"))
        units: list[Unit] = []
        kept: dict[str, list[Unit]] = {}
        for unit in units_of(inventory):
            twin = tied_to(unit, inventory)
            if twin:
                kept.setdefault(f"tied to {twin}", []).append(unit)
            else:
                units.append(unit)
        allowed: list[list[int]] = []
        left_out: dict[str, int] = {}
        for unit in units:
            usable = []
            for i, plan in enumerate(plans):
                reason = why_not(unit, plan, engines, layout)
                if reason:
                    text = f"{factories[i].name}: {reason}"
                    left_out[text] = left_out.get(text, 0) + 1
                else:
                    usable.append(i)
            allowed.append(usable)
        if units and not any(allowed):
            raise NothingMatchedError(
                "no candidate can be used for any layer: " + "; ".join(left_out),
                expected="a candidate that fits the shapes and that the engine loads",
                hint="choose other candidates, another --engine, or another --layout",
            )
        names = [factory.name for factory in factories]
        return cls(loaded, inventory, base, plans, names, units, allowed, kept, left_out)

    def pairs(self) -> list[tuple[int, int]]:
        """Every unit with every candidate that it may get."""
        return [(u, c) for u, usable in enumerate(self.allowed) for c in usable]

    def plan_of(self, choice: dict[int, int]) -> Plan:
        """The plan that gives units their candidates and leaves the rest in high precision."""
        layers = {layer: c for u, c in choice.items() for layer in self.units[u].layers}
        return mix(self.plans, self.base, layers)


def _identity(role: object) -> IdentityQuantizer:
    return IdentityQuantizer()


def _noise(task: _Task, on_progress: Progress | None) -> dict[tuple[int, int], Measured]:
    """Weight noise per unit and candidate, as the relative error that `Measured.error` squares."""
    module, pairs = task.loaded.module, task.pairs()
    assert module is not None
    found = {}
    for done, (u, c) in enumerate(pairs):
        if on_progress is not None:
            on_progress(done, len(pairs), task.units[u].name)
        noise = weight_noise(module, task.units[u], task.plans[c])
        found[u, c] = Measured(None, math.sqrt(noise), None)
    return found


def _meter(
    task: _Task, options: Any, backward: bool, seed: int
) -> tuple[ModelMeter, dict[str, Any]]:
    from qrole.comparing.data import DataOptions, load_data
    from qrole.comparing.outputs import Objective

    loaded = task.loaded
    inputs = load_data(loaded, options or DataOptions())
    module = loaded.module
    assert module is not None
    objective = Objective(loaded.loss, module, seed)
    meter = ModelMeter(module, task.base, inputs, objective, backward=backward, seed=seed)
    return meter, inputs.facts()


def _sensitivities(
    task: _Task, meter: ModelMeter, journal: Journal, on_progress: Progress | None
) -> dict[tuple[int, int], Measured]:
    """The model's error with one unit quantized by one candidate, for every pair."""
    found, pairs = {}, task.pairs()
    for done, (u, c) in enumerate(pairs):
        if on_progress is not None:
            on_progress(done, len(pairs), f"{task.names[c]}: {task.units[u].name}")
        plan = task.plan_of({u: c})
        key = f"{task.names[c]} {task.units[u].name}"
        found[u, c] = journal.get(key, functools.partial(meter.measure, plan))
    return found


def _metric(errors: dict[tuple[int, int], Measured], backward: bool) -> str:
    if backward:
        return "gradient error"
    return "KL" if any(m.kl is not None for m in errors.values()) else "output error"


@dataclass(frozen=True)
class _Chooser:
    """From errors per unit to the choice within the budget."""

    task: _Task
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
