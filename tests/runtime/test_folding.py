"""Runs of equal layers fold into one line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qrole.folding import fold


def _paths(items: list[tuple[str, int]]) -> list[str]:
    return [group.path for group in fold(items, lambda i: i[0], lambda i: i[1])]


def test_consecutive_layers_fold():
    assert _paths([(f"layers.{i}.fc", 0) for i in range(30)]) == ["layers.0-29.fc"]


def test_a_layer_of_another_kind_splits_the_run():
    items = [("l.0.a", 0), ("l.1.a", 1), ("l.2.a", 0), ("l.3.a", 0)]
    assert _paths(items) == ["l.0.a", "l.1.a", "l.2-3.a"]


def test_a_gap_splits_the_run():
    assert _paths([("l.0", 0), ("l.1", 0), ("l.5", 0)]) == ["l.0-1", "l.5"]


def test_two_numbers_fold_when_they_make_a_rectangle():
    items = [(f"l.{i}.e.{j}", 0) for i in range(3) for j in range(4)]
    assert _paths(items) == ["l.0-2.e.0-3"]


def test_interleaved_projections_keep_their_order():
    items = [(f"l.{i}.{p}", p) for i in range(2) for p in ("q", "k")]
    assert _paths(items) == ["l.0-1.q", "l.0-1.k"]


def test_paths_without_numbers_stay():
    assert _paths([("head", 0), ("pooler.dense", 0)]) == ["head", "pooler.dense"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a.{}.x", "a.{}.y", "b.{}", "c"]),
            st.integers(0, 6),
            st.integers(0, 1),
        ),
        max_size=30,
        unique_by=lambda item: item[0].format(item[1]) if "{" in item[0] else item[0],
    )
)
def test_nothing_is_lost_and_nothing_is_mixed(items):
    paths = [(form.format(n), key) for form, n, key in items]
    groups = fold(paths, lambda i: i[0], lambda i: i[1])
    assert sorted(i for g in groups for i in g.items) == sorted(paths)
    assert all(len({key for _, key in group.items}) == 1 for group in groups)
