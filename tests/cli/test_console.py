"""Tables at any width, and paths that are shortened where it hurts least."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrole_cli import console
from qrole_cli.console import Column, OutputFormat, shorten, shorten_all, show


@pytest.mark.parametrize(
    ("path", "width", "expected"),
    [
        ("encoder.layer.3.attention.output.dense", 28, "….3.attention.output.dense"),
        ("encoder.layer.3.attention.output.dense", 18, "….3.….output.dense"),
        ("encoder.layer.3.attention.output.dense", 12, "….3.….dense"),
        ("model.layers.0-29.mlp.down_proj", 24, "….0-29.mlp.down_proj"),
        ("a_single_very_long_name_without_dots", 12, "a_si…ut_dots"),
    ],
)
def test_numbers_and_the_last_name_stay(path, width, expected):
    assert shorten(path, width) == expected


def test_paths_that_would_look_alike_show_what_differs():
    paths = [f"model.{side}.layers.0-3.self_attn.k_proj" for side in ("encoder", "decoder")]
    assert shorten_all(paths, 29) == [
        "….encoder.layers.0-3.….k_proj",
        "….decoder.layers.0-3.….k_proj",
    ]
    assert shorten_all(paths[:1], 29) == ["….layers.0-3.self_attn.k_proj"]


@given(
    st.lists(st.sampled_from(["model", "layers", "0", "17", "mlp", "down_proj"]), min_size=1),
    st.integers(8, 60),
)
def test_never_wider_than_asked(parts, width):
    path = ".".join(parts)
    if len(path) > width:
        assert len(shorten(path, width)) <= width


_COLUMNS = (Column("module", path=True), Column("extra", drop=1), Column("value", right=True))
_ROWS = [["model.layers.0.self_attn.q_proj", "x" * 60, "1.25"]]


def test_columns_that_do_not_fit_are_named(capsys, monkeypatch):
    monkeypatch.setattr(console.out, "width", 60)
    show(_COLUMNS, _ROWS, {}, OutputFormat.TABLE)
    captured = capsys.readouterr()
    assert "1.25" in captured.out
    assert "xxx" not in captured.out
    assert "columns that did not fit: extra" in captured.err


def test_wide_keeps_every_column(capsys, monkeypatch):
    monkeypatch.setattr(console.out, "width", 60)
    show(_COLUMNS, _ROWS, {}, OutputFormat.TABLE, wide=True)
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["module", "extra", "value"]
    assert row.split() == _ROWS[0], "one line, nothing shortened or broken"


def test_paragraph_keeps_its_indent(capsys, monkeypatch):
    monkeypatch.setattr(console.out, "width", 30)
    console.paragraph("one two three four five six seven", indent=4)
    assert capsys.readouterr().out == "    one two three four five\n    six seven\n"


def test_machine_formats(capsys):
    show(_COLUMNS, [["a|b", "c,d", "1"]], {"schema": "x/1"}, OutputFormat.CSV)
    assert capsys.readouterr().out == 'module,extra,value\na|b,"c,d",1\n'
    show(_COLUMNS, [["a|b", "c", "1"]], {"schema": "x/1"}, OutputFormat.MARKDOWN)
    assert "| a\\|b | c | 1 |" in capsys.readouterr().out
    show(_COLUMNS, [], {"schema": "x/1"}, OutputFormat.JSON)
    assert json.loads(capsys.readouterr().out) == {"schema": "x/1"}


def test_json_refuses_nan():
    with pytest.raises(ValueError, match="not JSON compliant"):
        show((), [], {"value": float("nan")}, OutputFormat.JSON)


def test_progress_is_silent_without_a_terminal(capsys):
    with console.progress("working") as report:
        report(1, 2)
    assert capsys.readouterr().err == ""
