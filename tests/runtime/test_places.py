"""Many paths in few words."""

from __future__ import annotations

import pytest

from qrole.places import summarize_places


@pytest.mark.parametrize(
    ("paths", "places"),
    [
        ([], []),
        (["fc"], [("fc", 1)]),
        (["fc", "fc"], [("fc", 2)]),
        (["a.q", "a.k", "a.k"], [("a.{q,k}", 3)]),
        (
            [f"l.{i}.m.{name}_proj" for i in range(3) for name in ("q", "k")],
            [("l.0-2.m.{q,k}_proj", 6)],
        ),
        (["a.fc1", "a.fc2", "b.fc1"], [("a.{fc1,fc2}", 2), ("b.fc1", 1)]),
        (["a.q_proj", "a.norm"], [("a.{q_proj,norm}", 2)]),
        (["a.b_proj", "a.proj"], [("a.{b_proj,proj}", 2)]),
        (["l.0.a", "l.2.a"], [("l.0.a", 1), ("l.2.a", 1)]),
        (["l.0.a", "l.1.a", "l.0.b"], [("l.0-1.a", 2), ("l.0.b", 1)]),
        (["experts.0", "experts.1"], [("experts.0-1", 2)]),
        (["file.py:3", "file.py:9"], [("file.py:3", 1), ("file.py:9", 1)]),
    ],
)
def test_places(paths: list[str], places: list[tuple[str, int]]) -> None:
    assert summarize_places(paths) == places
    assert sum(count for _, count in places) == len(paths)
