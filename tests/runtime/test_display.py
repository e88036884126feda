"""What notebooks show: whole, escaped, bounded, and in the page's own colours."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import qrole
from qrole.display import ROWS, plan_html

BOUND = 30_000


class Page(HTMLParser):
    """Cells of every table by row, and the text outside of them; fails on unbalanced tags."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data
        else:
            self.text += data


def shown(result: Any) -> Page:
    source = result._repr_html_()
    assert len(source) < BOUND
    assert not re.search(r"(?<!border-)(?<!-)\bcolor:|background|<script|<style|http", source)
    return Page(source)


@pytest.fixture(scope="module")
def llama(samples: Path) -> qrole.LoadedModel:
    return qrole.load_model(str(samples / "llama_tiny.py"), weights=True)


def test_an_inventory_folds_equal_layers(llama: qrole.LoadedModel) -> None:
    page = shown(qrole.inspect(llama))
    assert "llama_tiny.py: 87 slots in 29 modules" in page.text
    assert "not covered: norm or other vector" in page.text
    head, first, *_ = page.tables[0]
    assert head == ["layer", "count", "class", "slots", "weight"]
    assert first[:3] == ["layers.0-3.self_attn.q_proj", "4", "Linear"]
    assert first[3:5] == ["input, weight, grad_output", "128x128"]
    assert len(page.tables[0]) == 9


def test_a_plan_shows_what_each_tensor_gets_and_the_totals(llama: qrole.LoadedModel) -> None:
    def mixed(role: qrole.QuantizerRole | None) -> qrole.Quantizer:
        if role is None or role.name.endswith("lm_head"):
            return qrole.IdentityQuantizer()
        if role.tensor_type == "weight" and ".mlp." in role.name:
            return qrole.NVFP4Quantizer(with_2d_quantization=True)
        return qrole.MXFP8Quantizer(qrole.DType.kFloat8E4M3)

    layers, totals = shown(qrole.plan(llama, mixed)).tables
    assert layers[0] == ["layer", "count", "input", "weight", "grad_output"]
    row = next(row for row in layers if row[0] == "layers.0-3.mlp.down_proj")
    assert row[1:] == ["4", "MXFP8 E4M3", "NVFP4 2D", "MXFP8 E4M3"]
    assert [row[0] for row in totals] == [
        "weights in",
        "NVFP4 16x16",
        "MXFP8 E4M3",
        "high precision",
        "not covered",
    ]
    assert totals[1][2] == "589,824"


def test_a_model_with_thousands_of_layers_stays_small() -> None:
    wide = nn.ModuleDict({f"branch_{i}<b>": nn.Linear(i + 1, 2) for i in range(3000)})
    page = shown(qrole.plan(wide, "mxfp8"))
    assert len(page.tables[0]) == ROWS + 1
    assert "and 2,970 more layers" in page.text
    assert page.tables[0][1][0] == "branch_0<b>"


def test_an_audit_groups_findings(llama: qrole.LoadedModel) -> None:
    report = qrole.audit(llama, "nvfp4", target="sm_90")
    page = shown(report)
    head, *rows = page.tables[0]
    assert head == ["code", "severity", "where", "count", "what", "to do"]
    assert sum(int(row[3].replace(",", "")) for row in rows) == len(report.findings)
    assert rows[0][1] == "error"
    assert f"{report.checks} codes checked" in page.text


def test_a_comparison_shows_the_worst_layers(llama: qrole.LoadedModel) -> None:
    report = qrole.compare(llama, "nvfp4", steps=2, one_at_a_time="role")
    model, layers, alone, training = shown(report).tables
    assert model[0][:2] == ["factory", "output dB"]
    assert model[1][0] == "nvfp4"
    assert len(layers) == 11
    cosines = [float(row[-1]) for row in layers[1:]]
    assert cosines == sorted(cosines)
    assert alone[0][0] == "nvfp4, alone"
    assert [row[0] for row in training[1:]] == ["reference", "nvfp4"]
    several = shown(qrole.compare(llama, ["nvfp4", "mxfp8"], backward=False))
    assert [row[0] for row in several.tables[0]] == ["factory", "nvfp4", "mxfp8"]
    assert len(several.tables) == 1


def test_a_search_shows_its_rules(llama: qrole.LoadedModel) -> None:
    result = qrole.search(llama, ["nvfp4", "mxfp8"], bits=5.5, data_free=True)
    page = shown(result)
    names = [row[0] for row in page.tables[0]]
    assert names[:4] == ["choice", "found", "uniform nvfp4", "uniform mxfp8"]
    assert "tied to embed_tokens.weight: lm_head" in page.text
    assert result.rules.splitlines()[0] in page.text


def test_a_gate_says_what_broke(llama: qrole.LoadedModel, tmp_path: Path) -> None:
    budgets = tmp_path / "budgets.toml"
    budgets.write_text('[budgets]\nweight = "sqnr_db >= 60"\nlogits = "kl <= 1"\n')
    gate = qrole.judge(qrole.compare(llama, "mxfp8", backward=False), budgets=budgets)
    page = shown(gate)
    assert page.text.startswith("failed: 2 limits, 29 violations")
    assert page.tables[0][1][0] == "mxfp8"
    assert "sqnr_db >= 60" in page.tables[0][1][1]
    assert page.tables[1][0][0] == "factory"


def test_what_was_written_and_whether_it_is_sound(llama: qrole.LoadedModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    page = shown(qrole.apply(llama, "nvfp4", out))
    assert page.tables[0][1] == ["nvfp4", "28"]
    assert ["vllm", "loads", ""] in page.tables[1]
    assert "bytes became" in page.text
    page = shown(qrole.verify(out, llama))
    assert "sound" in page.text
    decibels = [float(row[2]) for row in page.tables[0][1:]]
    assert len(decibels) == 10
    assert decibels == sorted(decibels)
    assert "and 18 more layers, all better" in page.text
    (out / "stale.bin").write_bytes(b"")
    page = shown(qrole.verify(out))
    assert "1 problem," in page.text
    assert page.tables[0][1][:2] == ["stale-weights", "stale.bin"]


class Spy(nn.Module):
    """A path that is markup."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("<script>alert(1)</script>", nn.Linear(32, 32))


def test_names_are_text_and_never_markup() -> None:
    source = plan_html(qrole.plan(Spy(), "mxfp8"))
    assert "<script" not in source
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in source


def test_a_long_text_is_cut() -> None:
    deep = nn.Sequential()
    deep.add_module("x" * 900, nn.Linear(32, 32))
    cell = shown(qrole.inspect(deep)).tables[0][1][0]
    assert len(cell) == 200
    assert cell.endswith("…")


def test_a_column_without_content_is_left_out(llama: qrole.LoadedModel, samples: Path) -> None:
    report = qrole.compare(llama, "mxfp8", backward=False)
    assert shown(report).tables[0][0][-1] == "loss diff"
    experts = shown(qrole.inspect(samples / "moe_tiny.py")).tables[0]
    assert experts[0][-1] == "experts"
    assert experts[1][-1] == "8"
