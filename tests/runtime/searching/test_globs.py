"""Few globs that hit what they should and nothing else."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import strategies as st

from qrole.searching.globs import cover

_PATHS = [f"layers.{i}.{m}" for i in range(4) for m in ("attn.q", "attn.o", "mlp.up", "mlp.down")]


def test_a_whole_kind_is_one_glob():
    wanted = [p for p in _PATHS if p.endswith("mlp.down")]
    assert cover(wanted, [p for p in _PATHS if p not in wanted]) == ["layers.*.mlp.down"]


def test_a_whole_layer_is_one_glob():
    wanted = [p for p in _PATHS if p.startswith("layers.0.")]
    assert cover(wanted, [p for p in _PATHS if p not in wanted]) == ["layers.0.*"]


def test_everything_is_one_glob():
    assert cover(_PATHS, ["lm_head"]) == ["layers.*"]


def test_a_single_path_stays_itself():
    assert cover(["layers.2.attn.q"], [p for p in _PATHS if p != "layers.2.attn.q"]) == [
        "layers.2.attn.q"
    ]


@given(st.sets(st.sampled_from(_PATHS), min_size=1))
def test_cover_is_exact(wanted):
    globs = cover(wanted, [p for p in _PATHS if p not in wanted])
    assert {p for p in _PATHS if any(fnmatchcase(p, g) for g in globs)} == wanted
    assert len(globs) <= len(wanted)
