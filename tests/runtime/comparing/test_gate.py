"""Budgets, baseline and what CI systems are told."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from qrole.comparing import Report, compare, judge, load_baseline, load_budgets
from qrole.errors import CheckpointError, NothingMatchedError, UnknownNameError, UsageError


@pytest.fixture(scope="module")
def report(samples: Path) -> Report:
    return compare(str(samples / "mlp.py"), "nvfp4")


def _budgets(tmp_path: Path, text: str):  # type: ignore[no-untyped-def]
    path = tmp_path / "budgets.toml"
    path.write_text(text)
    return load_budgets(path)


def test_limits_of_every_kind(report: Report, tmp_path: Path) -> None:
    text = """
    [budgets]
    weight = "sqnr_db >= 10"
    "linear/*" = ["underflows <= 50", "rel_err < 1"]
    gemm = "sqnr_db > 5"
    layer = "cosine >= 0.5"
    gradient = "grad_cosine > 0"
    logits = "kl <= 1"
    model = "loss_diff < 10"
    [modules."0"]
    wgrad = "max_abs_err < 10"
    """
    gate = judge(report, _budgets(tmp_path, text))
    assert gate.passed is True
    assert len(gate.judged) == 9


def test_violations_come_worst_first(report: Report, tmp_path: Path) -> None:
    budgets = _budgets(tmp_path, '[budgets]\nlogits = "kl <= 1e-9"\nlayer = "cosine >= 0.999"\n')
    gate = judge(report, budgets)
    assert gate.passed is False
    assert gate.violations[0].where == "logits"
    assert [v.excess for v in gate.violations] == sorted(
        (v.excess for v in gate.violations), reverse=True
    )
    assert str(gate.violations[0]).startswith("nvfp4: logits: kl = ")


def test_nothing_judged_is_no_pass(report: Report) -> None:
    assert judge(report).passed is None


@pytest.mark.parametrize(
    "line",
    ['dpa = "rel_err < 1"', 'gradient = "grad_cosine > 0"\n[modules."9"]\nweight = "mse < 1"'],
)
def test_a_budget_that_matches_nothing_is_an_error(
    report: Report, tmp_path: Path, line: str
) -> None:
    with pytest.raises(NothingMatchedError, match="matches nothing that was measured"):
        judge(report, _budgets(tmp_path, f"[budgets]\n{line}\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no budget"),
        ("[budget]\nweight = 'mse < 1'", r"holds the tables \['budget'\]"),
        ("[budgets]\nweight = 3", "weight = 3 is no budget"),
        ("[budgets]\nweight = 'mse about 3'", "is no budget"),
        ("[budgets", "is no TOML"),
    ],
)
def test_malformed_budgets(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _budgets(tmp_path, text)


def test_unknown_metrics_have_neighbours(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="no metric of slots 'sqnr'") as raised:
        _budgets(tmp_path, "[budgets]\nweight = 'sqnr >= 3'")
    assert "sqnr_db" in raised.value.nearest


def test_a_baseline_lets_equal_errors_pass_and_names_grown_ones(
    report: Report, tmp_path: Path
) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(report.to_json()))
    baseline = load_baseline(path)
    assert judge(report, baseline=baseline).passed is True
    model = baseline["candidates"][0]["model"]
    model["kl"] = model["kl"] / 2
    (violation,) = judge(report, baseline=baseline).violations
    assert (violation.where, violation.metric) == ("logits", "kl")
    baseline["noise"], baseline["repeats"] = {"nvfp4: logits kl": model["kl"]}, 3
    assert judge(report, baseline=baseline).passed is True


def test_a_baseline_of_spreads_over_an_unknown_number_of_seeds(
    report: Report, tmp_path: Path
) -> None:
    old = {**report.to_json(), "noise": {"nvfp4: logits kl": 0.1}}
    del old["repeats"]
    (tmp_path / "old.json").write_text(json.dumps(old))
    with pytest.raises(UsageError, match="does not say over how many seeds"):
        load_baseline(tmp_path / "old.json")
    assert judge(report, baseline=old).passed is True


def test_what_is_no_longer_measured_breaks_the_baseline(report: Report) -> None:
    baseline = report.to_json()
    baseline["candidates"][0]["gemms"].append(
        {"module": "gone", "group": "", "gemm": "fprop", "rel_err": 0.1}
    )
    (violation,) = judge(report, baseline=baseline).violations
    assert violation.where == "fprop of gone"
    assert "no longer measured" in str(violation)


def test_baselines_of_something_else(report: Report, tmp_path: Path) -> None:
    other = report.to_json()
    other["data"]["sha256"] = "0" * 64
    with pytest.raises(UsageError, match="another input data"):
        judge(report, baseline=other)
    renamed = report.to_json()
    renamed["candidates"][0]["factory"] = "mxfp8"
    with pytest.raises(NothingMatchedError, match="the baseline holds mxfp8"):
        judge(report, baseline=renamed)
    path = tmp_path / "b.json"
    with pytest.raises(UsageError, match="there is no baseline"):
        load_baseline(path)
    path.write_text("{")
    with pytest.raises(CheckpointError, match="is no JSON"):
        load_baseline(path)
    path.write_text('{"schema": "qrole.inspect/1"}')
    with pytest.raises(UsageError, match="has the schema"):
        load_baseline(path)


def test_junit_has_a_case_per_limit(report: Report, tmp_path: Path) -> None:
    budgets = _budgets(tmp_path, '[budgets]\nlogits = "kl <= 0"\nlayer = "cosine >= 0"\n')
    suite = ET.fromstring(judge(report, budgets).junit())
    cases = {case.get("name"): case.find("failure") for case in suite}
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    assert cases["finite"] is None
    assert cases["layer: cosine >= 0"] is None
    assert cases["logits: kl <= 0"] is not None


def test_github_gets_one_line_per_violation(report: Report, tmp_path: Path) -> None:
    gate = judge(report, _budgets(tmp_path, '[budgets]\nlogits = "kl <= 0"\n'))
    (line,) = gate.annotations(5)
    assert line.startswith("::error title=qrole compare::nvfp4: logits: kl = ")
    summary = gate.summary(5)
    assert summary.startswith("### qrole compare: failed\n")
    assert "| nvfp4 |" in summary
