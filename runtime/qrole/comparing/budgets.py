"""Budgets: limits on what a comparison may find, from a TOML file.

::

    [budgets]
    weight = "sqnr_db >= 28"                            # slots, by role
    "dpa/*" = ["sqnr_db >= 20", "underflows <= 5"]
    fprop = "sqnr_db >= 18"                             # products
    layer = "cosine >= 0.95"                            # forward results, upstream errors included
    gradient = "grad_cosine >= 0.9"                     # parameters
    logits = "kl <= 0.02"                               # the model

    [modules."encoder.layer.0.*"]                       # the same, for paths that match
    weight = "sqnr_db >= 30"
"""

from __future__ import annotations

import math
import operator
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from qrole.comparing.report import CandidateReport, Report
from qrole.errors import NothingMatchedError, UnknownNameError, UsageError

__all__ = ["METRICS", "Budget", "Violation", "check_budgets", "load_budgets"]

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM = re.compile(r"\s*([a-z0-9_]+)\s*(>=|<=|==|>|<)\s*([-+0-9.eE]+)\s*")
_MODEL = ("model", "output", "logits")
_GEMMS = ("fprop", "dgrad", "wgrad", "gemm")
#: Metrics that a budget may name, by what it is about.
METRICS: dict[str, tuple[str, ...]] = {
    "model": (
        "sqnr_db",
        "cosine",
        "rel_err",
        "kl",
        "top1_agreement",
        "loss",
        "loss_diff",
        "grad_cosine",
        "grad_rel_err",
    ),
    "gemm": ("sqnr_db", "rel_err", "max_abs_err"),
    "layer": ("sqnr_db", "cosine", "rel_err"),
    "gradient": ("grad_cosine", "grad_rel_err", "grad_norm_ratio"),
    "training": ("divergence_step", "max_loss_diff", "final_loss_diff", "grad_norm_ratio"),
    "slot": (
        "sqnr_db",
        "rel_err",
        "mse",
        "max_abs_err",
        "cur_amax",
        "underflows",
        "overflows",
        "scale_inv_min",
        "scale_inv_max",
        "scale_inv_std",
        "dynamic_range",
    ),
}


@dataclass(frozen=True)
class Budget:
    """One limit.

    Attributes:
        module: Glob over module paths (parameter names for `gradient`); `*` for all.
        target: `model`, `output` or `logits`; `layer`; `gradient`; `training`; `fprop`, `dgrad`,
            `wgrad` or `gemm`; else a glob over `tensor_type` and `module_type/tensor_type`.
        metric: Name of the measured value.
        operator: `>=`, `<=`, `==`, `>` or `<`.
        limit: What it is compared with.
    """

    module: str
    target: str
    metric: str
    operator: str
    limit: float

    def __str__(self) -> str:
        where = "" if self.module == "*" else f"{self.module}: "
        return f"{where}{self.target}: {self.metric} {self.operator} {self.limit:g}"

    @property
    def kind(self) -> str:
        """Which part of a report it looks at."""
        if self.target in _MODEL:
            return "model"
        if self.target in _GEMMS:
            return "gemm"
        return self.target if self.target in ("layer", "gradient", "training") else "slot"

    def holds(self, value: float) -> bool:
        """Whether a value keeps the limit; NaN never does."""
        return _OPERATORS[self.operator](value, self.limit)


@dataclass(frozen=True)
class Violation:
    """A value that broke a limit.

    Attributes:
        candidate: Name of the factory.
        where: What was measured, in words.
        metric: Name of the value.
        value: What was found.
        limit: The limit, as text.
        excess: How far beyond the limit, relative to it; infinite for NaN and infinity.
        text: Says it instead of the value, where there is none.
    """

    candidate: str
    where: str
    metric: str
    value: float
    limit: str
    excess: float
    text: str = ""

    def __str__(self) -> str:
        found = self.text or f"{self.metric} = {self.value:.4g}"
        return f"{self.candidate}: {self.where}: {found} ({self.limit})"


def load_budgets(path: Path) -> tuple[Budget, ...]:
    """The budgets of a TOML file.

    Raises:
        UsageError: The file is missing, no TOML, or holds something that is no budget.
        UnknownNameError: A metric that does not exist there.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no budgets file {str(path)!r}",
            expected="a TOML file with a table [budgets]",
            hint='create one holding, for example, weight = "sqnr_db >= 28"',
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} is no TOML: {error}", expected="a table [budgets]", hint="fix the file"
        ) from error
    budgets = [*_parse_table("*", content.pop("budgets", {}), path)]
    for module, table in content.pop("modules", {}).items():
        budgets += _parse_table(module, table, path)
    if content or not budgets:
        found = f"the tables {sorted(content)}" if content else "no budget"
        raise UsageError(
            f"{path} holds {found}",
            expected='[budgets], and [modules."glob"] for budgets of some modules only',
            hint="move the limits there",
        )
    return tuple(budgets)


def _parse_table(module: str, table: Any, path: Path) -> Iterator[Budget]:
    if not isinstance(table, dict):
        raise _malformed(path, module, table)
    for target, limits in table.items():
        for text in limits if isinstance(limits, list) else [limits]:
            match = _FORM.fullmatch(text) if isinstance(text, str) else None
            if match is None:
                raise _malformed(path, target, text)
            try:
                limit = float(match[3])
            except ValueError as error:
                raise _malformed(path, target, text) from error
            budget = Budget(module, target, match[1], match[2], limit)
            if budget.metric not in METRICS[budget.kind]:
                raise UnknownNameError(
                    f"metric of {budget.kind}s", budget.metric, METRICS[budget.kind]
                )
            yield budget


def _malformed(path: Path, key: str, value: Any) -> UsageError:
    return UsageError(
        f"{path}: {key} = {value!r} is no budget",
        expected='a limit such as "sqnr_db >= 28", or a list of them',
        hint="metrics are compared by >=, <=, ==, > or < with a number",
    )


def check_budgets(report: Report, budgets: tuple[Budget, ...]) -> list[Violation]:
    """The limits that a report breaks, worst first; NaN and infinity break any report.

    Raises:
        NothingMatchedError: A budget that nothing measured falls under.
    """
    violations: list[Violation] = []
    for candidate in report.candidates:
        where = candidate.model.first_nonfinite
        if where:
            violations.append(
                Violation(
                    candidate.factory, where, "finite", math.nan, "finite", math.inf, "NaN or inf"
                )
            )
        for budget in budgets:
            values = list(_values(report, candidate, budget))
            if not values:
                raise NothingMatchedError(
                    f"the budget {str(budget)!r} matches nothing that was measured for "
                    f"{candidate.factory}",
                    expected="a role, product, layer or parameter of this model under this plan",
                    hint="`qrole compare --json` lists what was measured; correct or drop it",
                )
            violations += [
                Violation(candidate.factory, name, budget.metric, value, str(budget),
                          _excess(value, budget.limit))
                for name, value in values
                if not budget.holds(value)
            ]  # fmt: skip
    return sorted(violations, key=lambda v: (-v.excess, v.candidate, v.where, v.metric))


def _excess(value: float, limit: float) -> float:
    if not math.isfinite(value):
        return math.inf
    return abs(value - limit) / max(abs(limit), 1e-12)


def _values(
    report: Report, candidate: CandidateReport, budget: Budget
) -> Iterator[tuple[str, float]]:
    for name, path, found in _targets(report, candidate, budget):
        value = getattr(found, budget.metric)
        if value is not None and fnmatchcase(path, budget.module):
            yield name, value


def _targets(
    report: Report, candidate: CandidateReport, budget: Budget
) -> Iterator[tuple[str, str, Any]]:
    """Name, module path and measured values of what a budget's target stands for."""
    if budget.kind == "model":
        if budget.target in ("model", candidate.model.output):
            yield budget.target, "", candidate.model
    elif budget.kind == "training":
        for run in report.training[1:]:
            if run.name == candidate.factory:
                yield "training", "", run
    elif budget.kind == "gemm":
        for gemm in candidate.gemms:
            if budget.target in ("gemm", gemm.gemm):
                yield f"{gemm.gemm} of {gemm.layer}", gemm.module, gemm
    elif budget.kind == "layer":
        for layer in candidate.layers:
            yield f"output of {layer.layer}", layer.module, layer
    elif budget.kind == "gradient":
        for parameter in candidate.parameters:
            yield f"gradient of {parameter.name}", parameter.name, parameter
    else:
        for slot in candidate.slots:
            if any(fnmatchcase(text, budget.target) for text in slot.role_names):
                yield f"{slot.operand} of {slot.layer}, {slot.usage}", slot.module, slot
