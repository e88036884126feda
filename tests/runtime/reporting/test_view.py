"""What the page is made of."""

from __future__ import annotations

import pytest

from qrole.errors import NothingMatchedError, UsageError
from qrole.reporting.view import build_view, place
from tests.runtime.reporting import payloads


@pytest.mark.parametrize(
    ("module", "group", "expected"),
    [
        ("model.layers.3.mlp.down_proj", "", ("model.layers.3", "mlp.down_proj")),
        ("model.layers.3.mlp.experts", "down_proj", ("model.layers.3", "mlp.experts.down_proj")),
        ("blocks.0.mlp.2", "", ("blocks.0", "mlp.2")),
        ("lm_head", "", ("lm_head", "(no block)")),
        ("", "", (".", "(no block)")),
    ],
)
def test_modules_are_placed_by_block(module, group, expected):
    assert place(module, group) == expected


def test_cells_keep_what_was_measured():
    view = build_view([("c", payloads.compare(layers=2))])
    (cells,) = view.cells
    assert len(cells) == 8 * 3 + 8 * 3 + 8
    first = cells[0]
    assert (first.block, first.kind, first.what) == (
        "model.layers.0",
        "self_attn.q_proj",
        "input row-wise",
    )
    assert set(first.values) == {"sqnr_db", "mse"}
    assert cells[-1].values == {"cosine": 1.0}


def test_two_files_of_one_command():
    both = [("a.json", payloads.audit()), ("b.json", payloads.audit())]
    with pytest.raises(UsageError, match=r"b\.json is a second file of `qrole audit`"):
        build_view(both)


@pytest.mark.parametrize("schema", ["", "qrole.lock/1", "other/1"])
def test_foreign_json(schema):
    with pytest.raises(UsageError, match=r"expected: qrole\.inspect/1"):
        build_view([("x.json", {"schema": schema})])


def test_newer_schema():
    with pytest.raises(UsageError, match="does not read"):
        build_view([("x.json", {"schema": "qrole.compare/2"})])


def test_no_files():
    with pytest.raises(NothingMatchedError):
        build_view([])


def test_equal_findings_are_joined_and_explained():
    payload = payloads.audit()
    payload["findings"].append({**payload["findings"][0], "where": "other_head"})
    found = build_view([("a", payload)]).findings
    assert [f["where"] for f in found] == [["lm_head", "other_head"], ["lm_head"]]
    assert "GEMM" in found[1]["explanation"]
