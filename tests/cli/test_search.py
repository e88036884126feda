"""`qrole search` finds a mix under a budget, writes it as rules, and goes on after a stop."""

from __future__ import annotations

import json
import tomllib

import pytest

from qrole.searching import measure


def _search(cli, samples, output, *options):
    model = samples / "llama_tiny.py"
    return cli("search", model, "-f", "nvfp4", "-f", "mxfp8", "-o", output, *options)


def _point(payload, name):
    return next(p for p in [payload["found"], *payload["baselines"]] if p["name"] == name)


def test_found_mix_keeps_the_budget_and_beats_the_edges(cli, samples, tmp_path):
    result = _search(cli, samples, tmp_path / "rules.toml", "--bits", "6.5", "--json")
    assert result.code == 0, result.err
    payload = json.loads(result.out)
    assert payload["schema"] == "qrole.search/1"
    assert payload["metric"] == "KL"
    found = payload["found"]
    assert found["bits"] <= 6.5
    edges = _point(payload, "first and last 1 blocks mxfp8, rest nvfp4")
    assert found["measured"]["kl"] < edges["measured"]["kl"]
    assert found["measured"]["kl"] < _point(payload, "uniform nvfp4")["measured"]["kl"]
    assert found["predicted"] == pytest.approx(found["measured"]["kl"], rel=0.25)


def test_rules_file_is_a_factory_whose_counts_are_met(cli, samples, tmp_path):
    rules = tmp_path / "rules.toml"
    payload = json.loads(_search(cli, samples, rules, "--bits", "6.5", "--json").out)
    text = rules.read_text()
    assert "alone, " in text
    for rule in tomllib.loads(text)["rule"]:
        assert rule["expect"] > 0
    plan = json.loads(cli("inspect", samples / "llama_tiny.py", "-f", rules, "--json").out)
    weights = [s for s in plan["slots"] if s["operand"] == "weight"]
    mxfp8 = sum(s["rowwise"]["family"] == "mxfp8" for s in weights)
    assert mxfp8 == payload["found"]["counts"]["mxfp8"]
    (head,) = [s for s in weights if s["module"] == "lm_head"]
    assert head["rowwise"]["family"] == "high_precision"
    audit = cli("audit", samples / "llama_tiny.py", "-f", rules, "--json")
    missed = [f for f in json.loads(audit.out)["findings"] if "expect" in f["message"]]
    assert missed == []


def test_tied_head_is_said(cli, samples, tmp_path):
    result = _search(cli, samples, tmp_path / "rules.toml", "--bits", "5", "--data-free")
    assert "kept in high precision, tied to embed_tokens.weight: lm_head" in result.err


def test_kl_budget_takes_the_smallest_that_keeps_it(cli, samples, tmp_path):
    result = _search(cli, samples, tmp_path / "r.toml", "--kl", "0.008", "--json")
    found = json.loads(result.out)["found"]
    assert found["measured"]["kl"] <= 0.008
    assert found["bits"] < 8.25


def test_size_counts_all_parameters(cli, samples, tmp_path):
    result = _search(cli, samples, tmp_path / "r.toml", "--size", "0.9MB", "--data-free", "--json")
    found = json.loads(result.out)["found"]
    undecided = (853_120 - 786_432) * 4
    assert found["nbytes"] + undecided <= 900_000


def test_a_stopped_search_goes_on(cli, samples, tmp_path, monkeypatch):
    whole = tmp_path / "whole.toml"
    assert _search(cli, samples, whole, "--bits", "6").code == 0
    rules, calls = tmp_path / "rules.toml", []
    real = measure.ModelMeter.measure

    def stopping(self, plan):
        calls.append(plan)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return real(self, plan)

    monkeypatch.setattr(measure.ModelMeter, "measure", stopping)
    assert _search(cli, samples, rules, "--bits", "6").code == 130
    journal = tmp_path / "rules.toml.journal"
    assert len(journal.read_text().splitlines()) == 7
    with journal.open("a") as file:
        file.write('{"of": "cut short')
    result = _search(cli, samples, rules, "--bits", "6")
    assert result.code == 0
    assert "7 measurements of a stopped search used again" in result.err
    assert rules.read_text() == whole.read_text()
    assert not journal.exists()


def test_engine_leaves_candidates_out_and_says_so(cli, samples, tmp_path):
    output = tmp_path / "r.toml"
    result = _search(cli, samples, output, "--bits", "9", "--data-free", "--engine", "sglang")
    assert result.code == 0, result.err
    assert "sglang does not load mxfp8" in result.err
    assert "mxfp8" not in tomllib.loads(output.read_text())["default"]


def test_gradients_can_be_the_measure(cli, samples, tmp_path):
    result = _search(cli, samples, tmp_path / "r.toml", "--bits", "6", "--backward", "--json")
    payload = json.loads(result.out)
    assert payload["metric"] == "gradient error"
    assert payload["found"]["measured"]["grad_rel_err"] > 0


def test_plot_is_self_contained(cli, samples, tmp_path):
    plot = tmp_path / "front.html"
    options = ("--bits", "6", "--data-free", "--plot", plot)
    assert _search(cli, samples, tmp_path / "r.toml", *options).code == 0
    assert "<script src" not in plot.read_text()


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ((), 2, "exactly one of bits per weight, size, and KL"),
        (("--bits", "6", "--kl", "0.1"), 2, "2 budgets were given: bits, kl"),
        (("--size", "many"), 2, "--size is 'many'"),
        (("--kl", "0.1", "--data-free"), 2, "without running the model"),
        (("--bits", "2"), 5, "the smallest choice takes"),
        (("--bits", "6", "--engine", "vlm"), 2, "did you mean 'vllm'"),
        (("--kl", "0.0000001"), 5, "even the most exact choice"),
    ],
)
def test_mistakes(cli, samples, tmp_path, options, code, text):
    result = _search(cli, samples, tmp_path / "r.toml", *options)
    assert result.code == code
    assert text in result.err
    assert not (tmp_path / "r.toml").exists()


def test_one_candidate_is_no_choice(cli, samples, tmp_path):
    result = cli("search", samples / "mlp.py", "-f", "nvfp4", "--bits", "6", "-o", tmp_path / "r")
    assert result.code == 2
    assert "two or more factories" in result.err


def test_existing_rules_are_kept(cli, samples, tmp_path):
    (tmp_path / "r.toml").write_text("mine")
    assert _search(cli, samples, tmp_path / "r.toml", "--bits", "6").code == 2
    assert (tmp_path / "r.toml").read_text() == "mine"


@pytest.mark.parametrize("size", ["4XB", "1.2.3GB", "-1", ""])
def test_size_that_is_none(cli, samples, tmp_path, size):
    result = _search(cli, samples, tmp_path / "rules.toml", "--size", size)
    assert result.code == 2
    assert f"error: --size is {size!r}" in result.err


def test_folder_that_is_missing_is_said_before_anything_is_measured(cli, samples, tmp_path):
    result = _search(cli, samples, tmp_path / "no" / "rules.toml", "--bits", "6.5")
    assert result.code == 4
    assert "there is no folder" in result.err
