"""Few patterns that hit what they should and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qrole.factories.patterns import NamePattern
from qrole.searching.globs import cover

_PATHS = [f"layers.{i}.{m}" for i in range(12) for m in ("attn.q", "attn.o", "mlp.up", "mlp.down")]


def _cover(wanted):
    return cover(wanted, [p for p in [*_PATHS, "lm_head"] if p not in wanted])


def test_a_whole_kind_is_one_glob():
    assert _cover([p for p in _PATHS if p.endswith("mlp.down")]) == ["layers.*.mlp.down"]


def test_a_whole_layer_is_one_glob():
    assert _cover([p for p in _PATHS if p.startswith("layers.0.")]) == ["layers.0.*"]


def test_everything_is_one_glob():
    assert _cover(_PATHS) == ["layers.*"]


def test_a_single_path_stays_itself():
    assert _cover(["layers.2.attn.q"]) == ["layers.2.attn.q"]


def test_scattered_layers_are_one_expression():
    wanted = [f"layers.{i}.{m}" for i in (0, 3, 7, 10) for m in ("attn.q", "mlp.up")]
    assert _cover(wanted) == [r"re:layers\.(0|3|7|10)\.(attn\.q|mlp\.up)"]


@given(st.sets(st.sampled_from(_PATHS), min_size=1))
def test_cover_is_exact(wanted):
    patterns = [NamePattern(text) for text in _cover(wanted)]
    assert {p for p in _PATHS if any(pattern.matches(p) for pattern in patterns)} == wanted
    assert not any(pattern.matches("lm_head") for pattern in patterns)
    assert len(patterns) <= len(wanted)
