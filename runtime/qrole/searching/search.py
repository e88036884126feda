"""`search`: formats per layer under a budget, from what each candidate does to each unit alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qrole.errors import UsageError
from qrole.given import as_factory
from qrole.loading import LoadedModel, load_model
from qrole.plugins import Factory
from qrole.searching.choose import Chooser
from qrole.searching.measure import Journal, Measured, ModelMeter, weight_noise
from qrole.searching.result import Budget, SearchResult
from qrole.searching.task import Task

__all__ = ["Progress", "check_request", "search"]

FactoryLike = str | Callable[..., Any] | Factory
Progress = Callable[[int, int, str], None]


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
    check_request(factories, budget, data_free)
    loaded = (
        model
        if isinstance(model, LoadedModel)
        else load_model(model, weights=True, trust_remote_code=trust_remote_code)
    )
    task = Task.of(loaded, factories, engines, layout)
    if data_free:
        noise = _noise(task, on_progress)
        return Chooser(task, noise, budget, None, "weight noise").result({}, 0)
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
    result = Chooser(task, errors, budget, meter, _metric(errors, backward)).result(
        facts, kept.reused
    )
    kept.finish()
    return result


def check_request(factories: Sequence[Factory], budget: Budget, data_free: bool) -> None:
    """Raises UsageError where no search can be made of what was asked; needs no model."""
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


def _noise(task: Task, on_progress: Progress | None) -> dict[tuple[int, int], Measured]:
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
    task: Task, options: Any, backward: bool, seed: int
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
    task: Task, meter: ModelMeter, journal: Journal, on_progress: Progress | None
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
