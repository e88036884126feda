"""Regression against a committed report: errors that grew beyond tolerance and noise."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median, stdev
from typing import Any

from qrole.comparing.budgets import Violation
from qrole.comparing.noise import Noise
from qrole.comparing.report import SCHEMA, CandidateReport, Report, layer_name
from qrole.errors import CheckpointError, NothingMatchedError, UsageError
from qrole.json_values import plain

__all__ = ["check_baseline", "errors", "load_baseline", "noise_floor", "spread_over_seeds"]

_FLOOR = 1e-7


def errors(candidate: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Name and value of everything in a candidate's JSON that is better when it is smaller."""
    name, model = candidate["factory"], candidate["model"]
    for metric in ("kl", "rel_err", "grad_rel_err"):
        yield from _named(f"{name}: {model['output']}", metric, model.get(metric))
    if model.get("top1_agreement") is not None:
        yield f"{name}: {model['output']} top1_disagreement", 1.0 - model["top1_agreement"]
    for layer in candidate["layers"]:
        where = f"output of {layer_name(layer['module'], layer['group'])}"
        yield from _named(f"{name}: {where}", "rel_err", layer["rel_err"])
    for gemm in candidate["gemms"]:
        where = f"{gemm['gemm']} of {layer_name(gemm['module'], gemm['group'])}"
        yield from _named(f"{name}: {where}", "rel_err", gemm["rel_err"])
    for slot in candidate["slots"]:
        where = f"{slot['slot']} {slot['usage']}"
        yield from _named(f"{name}: {where}", "rel_err", slot["rel_err"])
    for parameter in candidate["parameters"]:
        where = f"gradient of {parameter['name']}"
        yield from _named(f"{name}: {where}", "grad_rel_err", parameter["grad_rel_err"])


def _named(where: str, metric: str, value: Any) -> Iterator[tuple[str, float]]:
    if value is not None:
        yield f"{where} {metric}", float(value)


def spread_over_seeds(runs: Sequence[tuple[CandidateReport, ...]]) -> dict[str, float]:
    """Standard deviation of the errors over repeated seeds, where they differ."""
    if len(runs) < 2:
        return {}
    seen: dict[str, list[float]] = {}
    for run in runs:
        for candidate in run:
            for name, value in errors(plain(asdict(candidate))):
                seen.setdefault(name, []).append(value)
    finite = {name: values for name, values in seen.items() if all(map(math.isfinite, values))}
    return {name: stdev(values) for name, values in finite.items() if min(values) < max(values)}


def load_baseline(path: Path) -> dict[str, Any]:
    """A report that was saved earlier.

    Raises:
        UsageError: There is no such file, or it is no report of this schema.
        CheckpointError: It is no JSON.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no baseline {str(path)!r}",
            expected="a report that `qrole compare --save` wrote",
            hint="write it once on the commit to compare with, and commit it",
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"{path} is no JSON: {error}",
            expected="a report that `qrole compare --save` wrote",
            hint="write it again",
        ) from error
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        raise UsageError(
            f"{path} has the schema {schema!r}",
            expected=SCHEMA,
            hint="write it again with this version of qrole",
        )
    if found.get("noise") and "repeats" not in found:
        raise UsageError(
            f"{path} does not say over how many seeds its errors spread",
            expected="a report with `repeats`",
            hint="write it again with this version of qrole",
        )
    return dict(found)


def check_baseline(
    report: Report, baseline: dict[str, Any], *, tolerance: float = 0.05
) -> list[Violation]:
    """Errors that grew since the baseline, and measurements that are gone; worst first.

    An error may grow by the tolerance times its old value, plus what chance explains after the
    spread that baseline and report saw over repeated seeds; see `qrole.comparing.noise`.

    Args:
        report: The new report.
        baseline: What `load_baseline` gave.
        tolerance: Relative growth that is let pass.

    Raises:
        UsageError: The baseline was made of other data, another reference or another objective.
        NothingMatchedError: The two have no candidate in common.
    """
    now = report.to_json()
    _check_alike(now, baseline)
    before = {c["factory"]: dict(errors(c)) for c in baseline["candidates"]}
    violations: list[Violation] = []
    common = [c for c in now["candidates"] if c["factory"] in before]
    if not common:
        raise NothingMatchedError(
            f"the baseline holds {', '.join(before) or 'no candidate'}",
            expected=f"one of {', '.join(c['factory'] for c in now['candidates'])}",
            hint="write the baseline with the same --factory",
        )
    for candidate in common:
        found, was = dict(errors(candidate)), before[candidate["factory"]]
        chance = _growth_by_chance(was, found, baseline, now)
        for name, old in was.items():
            limit = old * (1.0 + tolerance + chance.get(name, 0.0)) + _FLOOR
            violations += _judged(candidate["factory"], name, old, found.get(name), limit)
    return sorted(violations, key=lambda v: (-v.excess, v.candidate, v.where))


def noise_floor(report: Report, baseline: dict[str, Any]) -> float | None:
    """Relative growth that half of the errors that vary may show by chance; None where none do."""
    now = report.to_json()
    before = {c["factory"]: dict(errors(c)) for c in baseline["candidates"]}
    chance = [
        growth
        for c in now["candidates"]
        for growth in _growth_by_chance(
            before.get(c["factory"], {}), dict(errors(c)), baseline, now
        ).values()
    ]
    return median(chance) if chance else None


def _growth_by_chance(
    was: dict[str, float], found: dict[str, float], baseline: dict[str, Any], now: dict[str, Any]
) -> dict[str, float]:
    """Relative growth of a candidate's errors that their spread over seeds explains."""
    sides = [
        (values, side["noise"], side["repeats"] - 1)
        for values, side in ((was, baseline), (found, now))
        if side.get("noise") and side.get("repeats", 1) > 1
    ]
    df = sum(own for _, _, own in sides)
    spreads: dict[str, float] = {}
    for name in was.keys() & found.keys():
        variance = sum(
            own * (float(noise.get(name, 0.0)) / (values[name] or 1.0)) ** 2
            for values, noise, own in sides
        )
        if variance > 0.0 and math.isfinite(variance):
            spreads[name] = math.sqrt(variance / df)
    if not spreads:
        return {}
    noise = Noise.of(spreads.values(), df)
    return {name: noise.allowed(spread) for name, spread in spreads.items()}


def _judged(
    factory: str, name: str, old: float, new: float | None, limit: float
) -> list[Violation]:
    where, _, metric = name.removeprefix(f"{factory}: ").rpartition(" ")
    if new is None:
        gone = "measured in the baseline"
        return [Violation(factory, where, metric, math.nan, gone, math.inf, "no longer measured")]
    if new <= limit:
        return []
    excess = (new - limit) / max(limit, _FLOOR) if math.isfinite(new) else math.inf
    text = f"baseline {old:.4g}, allowed {limit:.4g}"
    return [Violation(factory, where, metric, new, text, excess)]


def _check_alike(now: dict[str, Any], baseline: dict[str, Any]) -> None:
    for what, path in (
        ("input data", ("data", "sha256")),
        ("reference", ("reference",)),
        ("objective", ("objective",)),
        ("dtype", ("dtype",)),
    ):
        a: Any = now
        b: Any = baseline
        for key in path:
            a, b = a.get(key), b.get(key) if b else None
        if a != b:
            raise UsageError(
                f"the baseline was made with another {what}: {b!r}, now {a!r}",
                expected="the same model, data and reference as when the baseline was written",
                hint="run with the baseline's options, or write a new baseline",
            )
