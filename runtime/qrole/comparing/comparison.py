"""`compare`: one reference run, any number of candidates, one report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from qrole.comparing.baseline import spread_over_seeds
from qrole.comparing.candidate import Candidate
from qrole.comparing.data import Data, DataOptions, load_data
from qrole.comparing.outputs import Objective
from qrole.comparing.passes import run_candidate, run_reference
from qrole.comparing.report import CandidateReport, Report, SensitivityReport, TrainingReport
from qrole.comparing.restriction import groups_of, only_modules
from qrole.comparing.summary import candidate_report, sensitivity_report
from qrole.comparing.training import train, training_report
from qrole.emitters import EmitOptions, walk
from qrole.errors import NothingMatchedError, UnknownNameError, UsageError
from qrole.execute import PlanState, WeightCache, layers_of
from qrole.loading import LoadedModel, load_model
from qrole.plans import Inventory, Plan, build_plan
from qrole.plugins import Factory, load_factory
from qrole.quantizers import IdentityQuantizer

__all__ = ["compare", "named_dtype"]

FactoryLike = str | Callable[..., Any] | Factory
Progress = Callable[[int, int, str], None]


def compare(
    model: str | LoadedModel | nn.Module,
    factories: FactoryLike | Sequence[FactoryLike],
    *,
    reference: FactoryLike | None = None,
    only: Sequence[str] = (),
    one_at_a_time: str | None = None,
    steps: int = 0,
    data: DataOptions | None = None,
    backward: bool = True,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    repeats: int = 1,
    attention: bool = False,
    trust_remote_code: bool = False,
    on_progress: Progress | None = None,
) -> Report:
    """Measures what plans do to a model's numbers, forward and backward.

    Args:
        model: A module, or what the command line takes.
        factories: The candidates; each is run against the same reference run.
        reference: Factory of the reference plan; None is high precision.
        only: Globs over module paths and role names; all else stays in high precision.
        one_at_a_time: `role`, `module` or `gemm`: also quantize each such group alone.
        steps: Also train that many steps under each plan.
        data: What to feed; default: what the model's source offers.
        backward: Run the backward pass too.
        dtype: Cast the parameters; None leaves them.
        seed: Of everything random.
        repeats: Run with that many seeds, to learn the spread of what is measured.
        attention: Compute attention by its `dpa` slots too.
        trust_remote_code: Run code that a model directory brings.
        on_progress: Told of runs done, runs in total, and what is running.

    Raises:
        NothingMatchedError: No covered layer ran, a glob matches nothing, or a candidate
            quantizes nothing.
        QroleError: The model, the data or a factory is unusable; see `qrole.errors`.
    """
    loaded = _loaded(model, trust_remote_code)
    module = loaded.module
    assert module is not None, "_loaded sees to it"
    if dtype is not None:
        module.to(dtype)
    inventory = walk(loaded, EmitOptions(attention=attention))
    if attention:
        _check_attention(inventory)
    base = build_plan(inventory, _as_factory(reference or _identity))
    plans = [_candidate_plan(inventory, factory, only) for factory in _listed(factories)]
    comparison = _Comparison(
        loaded,
        module,
        base,
        load_data(loaded, data or DataOptions()),
        Objective(loaded.loss, module, seed),
        backward,
        _Counter(on_progress),
    )
    comparison.count_runs(plans, one_at_a_time, steps, repeats)
    reports = [comparison.candidates(plans, seed + i) for i in range(repeats)]
    return Report(
        model=loaded.spec,
        dtype=str(next(module.parameters()).dtype).removeprefix("torch."),
        reference=base.factory.name if reference is not None else "high precision",
        data=comparison.inputs.facts(),
        seed=seed,
        backward=backward,
        objective=comparison.objective.kind,
        only=tuple(only),
        candidates=reports[0],
        sensitivity=comparison.sensitivity(plans, one_at_a_time, seed) if one_at_a_time else {},
        training=comparison.training(plans, steps, seed) if steps else (),
        repeats=repeats,
        noise=spread_over_seeds(reports),
    )


def named_dtype(name: str) -> torch.dtype:
    """A floating dtype by its name in torch.

    Raises:
        UnknownNameError: There is no such dtype, or quantizers do not take it.
    """
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise UnknownNameError("dtype", name, known)
    return known[name]


def _identity(role: object) -> IdentityQuantizer:
    return IdentityQuantizer()


def _as_factory(factory: FactoryLike) -> Factory:
    if isinstance(factory, Factory):
        return factory
    return load_factory(factory) if isinstance(factory, str) else Factory.of(factory)


def _listed(factories: FactoryLike | Sequence[FactoryLike]) -> Sequence[FactoryLike]:
    if isinstance(factories, (str, Factory)) or callable(factories):
        return [factories]
    return factories


def _loaded(model: str | LoadedModel | nn.Module, trust_remote_code: bool) -> LoadedModel:
    if isinstance(model, nn.Module):
        return LoadedModel(type(model).__name__, "python", module=model)
    if isinstance(model, str):
        model = load_model(model, weights=True, trust_remote_code=trust_remote_code)
    if model.module is None:
        raise UsageError(
            f"{model.spec} holds weights only, and compare has to run a model",
            expected="a Python file, or a directory with a config.json that names the model",
            hint="add config.json, or write a model.py whose build() loads these weights",
        )
    return model


def _check_attention(inventory: Inventory) -> None:
    if not any(slot.operand == "qkv" for slot in inventory.slots):
        raise NothingMatchedError(
            f"no module of {inventory.model} is known to compute attention",
            expected="attention of transformers, torch.nn.MultiheadAttention or qrole's own",
            hint="leave attention out, or register an emitter that yields its dpa slots",
        )


def _candidate_plan(inventory: Inventory, factory: FactoryLike, only: Sequence[str]) -> Plan:
    plan = build_plan(inventory, _as_factory(factory))
    if only:
        plan = only_modules(plan, only)
    if not any(layer.quantized for layer in layers_of(plan)):
        raise NothingMatchedError(
            f"factory {plan.factory.name} quantizes no layer of "
            f"{'the modules chosen' if only else 'this model'}",
            expected="at least one slot that is not kept in high precision",
            hint="`qrole inspect` shows what the factory answers for each slot",
        )
    return plan


@dataclass
class _Counter:
    """Runs done of all that there will be, and who wants to know."""

    told: Progress | None
    total: int = 0
    done: int = 0

    def __call__(self, name: str) -> None:
        self.done += 1
        if self.told is not None:
            self.told(self.done, self.total, name)


@dataclass
class _Comparison:
    """What the parts of a comparison share."""

    loaded: LoadedModel
    module: nn.Module
    base: Plan
    inputs: Data
    objective: Objective
    backward: bool
    counter: _Counter

    def count_runs(
        self, plans: list[Plan], one_at_a_time: str | None, steps: int, repeats: int
    ) -> None:
        """Sets how many runs there will be."""
        runs = repeats * (1 + len(plans)) * len(self.inputs.batches)
        if one_at_a_time:
            groups = sum(1 for plan in plans for _ in groups_of(plan, one_at_a_time))
            runs += (len(plans) + groups) * len(self.inputs.batches)
        self.counter.total = runs + (1 + len(plans) if steps else 0)

    def candidates(self, plans: list[Plan], seed: int) -> tuple[CandidateReport, ...]:
        """Everything measured of every plan."""
        found = [Candidate.of(plan, seed=seed) for plan in plans]
        loss, blame = self._run(found, seed, keep_layers=True)
        for candidate in found:
            candidate.first_nonfinite = blame or candidate.first_nonfinite
        return tuple(candidate_report(c, loss, len(self.inputs.batches)) for c in found)

    def sensitivity(
        self, plans: list[Plan], grouping: str, seed: int
    ) -> dict[str, tuple[SensitivityReport, ...]]:
        """For each plan its groups quantized alone, worst first."""
        reports = {}
        for plan in plans:
            groups = [
                Candidate.of(part, seed=seed, name=name, detailed=False)
                for name, part in groups_of(plan, grouping)
            ]
            self._run(groups, seed, keep_layers=False)
            found = [sensitivity_report(c.name, c) for c in groups]
            reports[plan.factory.name] = tuple(sorted(found, key=lambda r: r.order, reverse=True))
        return reports

    def training(self, plans: list[Plan], steps: int, seed: int) -> tuple[TrainingReport, ...]:
        """Loss curves, the reference's first."""
        curves = []
        for plan in (self.base, *plans):
            self.counter(f"training {plan.factory.name}")
            curves.append(
                train(
                    self.module,
                    plan,
                    self.inputs.batches,
                    self.objective,
                    steps=steps,
                    make_optimizer=self.loaded.optimizer,
                    seed=seed,
                )
            )
        names = ("reference", *(plan.factory.name for plan in plans))
        pairs = zip(names, curves, strict=True)
        return tuple(training_report(name, found, curves[0]) for name, found in pairs)

    def _run(
        self, candidates: list[Candidate], seed: int, *, keep_layers: bool
    ) -> tuple[float, str]:
        """Runs every batch; the sum of the reference's losses, and where it was not finite."""
        state, weights = PlanState(self.base, seed=seed), WeightCache()
        loss, blame = 0.0, ""
        for i, batch in enumerate(self.inputs.batches):
            self.counter("reference")
            reference = run_reference(
                self.module,
                state,
                batch,
                self.objective,
                weights,
                backward=self.backward,
                keep_layers=keep_layers,
                seed=seed + i,
            )
            loss += reference.loss
            if reference.first_nonfinite:
                blame = blame or f"the reference run: {reference.first_nonfinite}"
            for candidate in candidates:
                self.counter(candidate.name)
                run_candidate(
                    self.module,
                    candidate,
                    batch,
                    self.objective,
                    reference,
                    weights,
                    seed=seed + i,
                )
        return loss, blame
