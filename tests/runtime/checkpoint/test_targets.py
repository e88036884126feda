"""Patterns of module names: literal cases, and the property that holds for all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrole.checkpoint.targets import hits, patterns

LAYERS = [
    f"model.layers.{i}.{p}"
    for i in range(12)
    for p in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj", "mlp.gate")
]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ([n for n in LAYERS if "attn" in n], [r"re:.*self_attn\.(k_proj|q_proj)$"]),
        ([n for n in LAYERS if n.endswith("gate")], [r"re:.*mlp\.gate$"]),
        (
            [n for n in LAYERS if "attn" in n and n.split(".")[2] in ("0", "10")],
            [r"re:.*layers\.(0|10)\.self_attn\.(k_proj|q_proj)$"],
        ),
        (["model.layers.3.mlp.gate"], ["model.layers.3.mlp.gate"]),
        (["lm_head"], ["lm_head"]),
        ([], []),
    ],
)
def test_patterns(chosen: list[str], expected: list[str]) -> None:
    assert list(patterns(chosen, [*LAYERS, "lm_head"])) == expected


def test_a_pattern_grows_until_the_vision_tower_is_left_alone() -> None:
    vision = [n.replace("model", "vision", 1) for n in LAYERS]
    chosen = [n for n in LAYERS if n.endswith("q_proj")]
    assert patterns(chosen, LAYERS + vision) == (r"re:.*model\.layers\.\d+\.self_attn\.q_proj$",)


def test_a_name_that_ends_in_another_one_is_anchored_at_its_start() -> None:
    names = ["blocks.0.fc", "blocks.1.fc", "side.blocks.0.fc", "side.blocks.1.fc"]
    assert patterns(names[:2], names) == (r"re:blocks\.\d+\.fc$",)


def test_experts_that_are_no_product_of_layers_and_experts() -> None:
    names = [f"l.{i}.experts.{e}.w" for i in range(3) for e in range(3)]
    chosen = [n for n in names if n not in ("l.1.experts.2.w",)]
    assert list(patterns(chosen, names)) == [
        r"re:.*l\.(0|2)\.experts\.(0|1|2)\.w$",
        r"re:.*l\.1\.experts\.(0|1)\.w$",
    ]


def test_a_pattern_of_experts_names_them() -> None:
    names = [f"model.layers.{i}.mlp.experts.{e}.up_proj" for i in range(2) for e in range(3)]
    names += ["model.layers.0.mlp.gate"]
    assert patterns(names[:-1], names) == (r"re:.*mlp\.experts\.\d+\.up_proj$",)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("re:.*mlp.gate", "m.mlp.gate_proj", True),
        ("re:.*mlp.gate$", "m.mlp.gate_proj", False),
        ("lm_head", "m.lm_head", False),
    ],
)
def test_hits_matches_from_the_start_and_not_to_the_end(
    pattern: str, name: str, expected: bool
) -> None:
    assert hits(pattern, name) is expected


PART = st.sampled_from(["a", "ab", "gate", "gate_proj", "x+y", "0", "1", "2", "10"])
NAMES = st.lists(st.lists(PART, min_size=1, max_size=5).map(".".join), unique=True, max_size=30)


@given(NAMES, st.randoms(use_true_random=False))
def test_patterns_hit_the_chosen_names_and_no_other(names: list[str], random: object) -> None:
    chosen = {name for name in names if random.random() < 0.5}  # type: ignore[attr-defined]
    found = patterns(chosen, names)
    assert {n for n in names if any(hits(p, n) for p in found)} == chosen
