"""What plans do to the numbers of a model: measured, judged, and searched for the least."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrole.given import as_factory, data_file, factories_of, runnable, with_batches

if TYPE_CHECKING:
    import torch

    from qrole.comparing import Budget, Gate, Report
    from qrole.given import FactoryLike, InputData, Model
    from qrole.searching import SearchResult

    NamedProgress = Callable[[int, int, str], None]

__all__ = ["compare", "judge", "search"]


def compare(
    model: Model,
    factories: FactoryLike | Sequence[FactoryLike],
    *,
    reference: FactoryLike | None = None,
    only: Sequence[str] = (),
    one_at_a_time: str | None = None,
    steps: int = 0,
    data: InputData | None = None,
    samples: int = 16,
    seq_len: int = 256,
    batch_size: int = 4,
    loss: Callable[[Any, Any], Any] | None = None,
    optimizer: Callable[[Any], Any] | None = None,
    backward: bool = True,
    dtype: str | torch.dtype | None = None,
    seed: int = 0,
    repeats: int = 1,
    attention: bool = False,
    trust_remote_code: bool = False,
    on_progress: NamedProgress | None = None,
) -> Report:
    """Measures what plans do to a model's numbers, forward and backward.

    A module that is given keeps its parameters, gradients and mode.

    Args:
        model: The model, with weights.
        factories: One or more candidates, each run against the same reference run.
        reference: Factory of the reference plan; None is high precision.
        only: Globs over module paths and role names; all else stays in high precision.
        one_at_a_time: `role`, `module` or `gemm`: also quantize each such group alone.
        steps: Also train that many steps under each plan.
        data: What to feed; None takes what the model's source offers.
        samples: Samples of a file at most; batches at most where batches are given.
        seq_len: Tokens per sample of a text at most.
        batch_size: Samples of a file per batch.
        loss: `loss(outputs, batch)`, a scalar to differentiate; None takes the model file's, else
            the output against a fixed random direction.
        optimizer: `optimizer(parameters)` for `steps`; None takes the model file's, else AdamW.
        backward: Run the backward pass too.
        dtype: Cast the parameters (a copy, where a module is given); None leaves them.
        seed: Of everything random.
        repeats: Run with that many seeds, to learn the spread of what is measured.
        attention: Compute attention by its `dpa` slots too: that of foreign modules, and as with
            `fp8_dpa` that of qrole's own.
        trust_remote_code: Run code that a model directory brings.
        on_progress: Told of runs done, runs in total, and what is running.

    Raises:
        NothingMatchedError: No covered layer ran, a glob matches nothing, or a candidate
            quantizes nothing.
        UsageError: There is no data to be had, or the model has no values.
    """
    from qrole.comparing import DataOptions, check_grouping, named_dtype
    from qrole.comparing import compare as measure

    candidates = factories_of(factories)
    base = as_factory(reference) if reference is not None else None
    cast = named_dtype(dtype) if isinstance(dtype, str) else dtype
    options = DataOptions(data_file(data), samples, seq_len, batch_size)
    if one_at_a_time is not None:
        check_grouping(one_at_a_time)
    loaded = runnable(model, "compare", trust_remote_code)
    if dtype is not None and not isinstance(model, (str, os.PathLike)):
        loaded = replace(loaded, module=copy.deepcopy(loaded.module))
    loaded = with_batches(loaded, data)
    loaded = replace(loaded, loss=loss or loaded.loss, optimizer=optimizer or loaded.optimizer)
    return measure(
        loaded,
        candidates,
        reference=base,
        only=only,
        one_at_a_time=one_at_a_time,
        steps=steps,
        data=options,
        backward=backward,
        dtype=cast,
        seed=seed,
        repeats=repeats,
        attention=attention,
        on_progress=on_progress,
    )


def judge(
    report: Report,
    *,
    budgets: str | os.PathLike[str] | Iterable[Budget] = (),
    baseline: str | os.PathLike[str] | Mapping[str, Any] | Report | None = None,
    tolerance: float = 0.05,
) -> Gate:
    """Holds a report to budgets and to a baseline: the gate of `qrole compare`.

    Args:
        report: What `compare` returned.
        budgets: TOML file of limits, or limits.
        baseline: An earlier report, its JSON, or the file that holds it.
        tolerance: Relative growth of an error against the baseline that is let pass.

    Returns:
        What was judged and what broke; `passed` is None where nothing was judged.

    Raises:
        NothingMatchedError: A budget matches nothing, or the baseline has no common candidate.
        UsageError: A file is malformed, or the baseline was made of something else.
    """
    from qrole.comparing import Report as ReportClass
    from qrole.comparing import judge as hold
    from qrole.comparing import load_baseline, load_budgets

    if isinstance(budgets, (str, os.PathLike)):
        budgets = load_budgets(Path(budgets))
    before: dict[str, Any] | None = None
    if isinstance(baseline, (str, os.PathLike)):
        before = load_baseline(Path(baseline))
    elif isinstance(baseline, ReportClass):
        before = baseline.to_json()
    elif baseline is not None:
        before = dict(baseline)
    return hold(report, tuple(budgets), before, tolerance=tolerance)


def search(
    model: Model,
    candidates: Sequence[FactoryLike],
    *,
    bits: float | None = None,
    nbytes: int | None = None,
    kl: float | None = None,
    data_free: bool = False,
    backward: bool = False,
    data: InputData | None = None,
    samples: int = 4,
    seq_len: int = 256,
    batch_size: int = 4,
    loss: Callable[[Any, Any], Any] | None = None,
    engines: Sequence[str] = (),
    layout: str = "compressed-tensors",
    journal: str | os.PathLike[str] | None = None,
    seed: int = 0,
    trust_remote_code: bool = False,
    on_progress: NamedProgress | None = None,
) -> SearchResult:
    """Chooses one candidate per layer so that the error is least within a budget.

    Args:
        model: The model, with weights.
        candidates: Two or more factories to choose from.
        bits: Budget: bits per weight that is decided, block scales included.
        nbytes: Budget: bytes of all parameters.
        kl: Budget: KL to high precision, nats per position. Exactly one budget is given.
        data_free: Judge by the weights' own noise; runs nothing.
        backward: Minimize the error of the gradients instead of the output's.
        data: As for `compare`.
        samples: As for `compare`.
        seq_len: As for `compare`.
        batch_size: As for `compare`.
        loss: As for `compare`.
        engines: As for `apply`: only formats that all of them load.
        layout: Layout of the checkpoint for them.
        journal: File that keeps measurements for a stopped search of the same weights; None keeps
            none.
        seed: Of everything random.
        trust_remote_code: Run code that a model directory brings.
        on_progress: Told of runs done, runs in total, and what is measured.

    Raises:
        UsageError: Fewer than two candidates, not exactly one budget, or no data to be had.
        NothingMatchedError: Nothing fits the budget.
    """
    from qrole.comparing import DataOptions
    from qrole.searching import Budget, check_request
    from qrole.searching import search as find

    budget, factories = Budget(bits, nbytes, kl), factories_of(candidates)
    options = DataOptions(data_file(data), samples, seq_len, batch_size)
    check_request(factories, budget, data_free)
    loaded = with_batches(runnable(model, "search", trust_remote_code), data)
    with tempfile.TemporaryDirectory() as scratch:
        return find(
            replace(loaded, loss=loss or loaded.loss),
            factories,
            budget,
            data_free=data_free,
            backward=backward,
            data=options,
            engines=engines,
            layout=layout,
            journal=Path(journal) if journal is not None else Path(scratch) / "journal",
            seed=seed,
            on_progress=on_progress,
        )
