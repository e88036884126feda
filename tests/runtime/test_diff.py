"""Plans side by side: slots where both know them, stored weights otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qrole.api import inspect, plan
from qrole.diff import Change, Side, compare_sides, group_changes, read_sides
from qrole.errors import CheckpointError, UsageError
from qrole.lock import write_lock
from qrole.plans import Inventory
from tests.audit.building import (
    FP8_GROUP,
    NVFP4_GROUP,
    bf16,
    compressed,
    decoder,
    fp8,
    fused_experts,
    nvfp4,
    write_safetensors,
)


def inventory() -> Inventory:
    return inspect(decoder())


def side_of(spec: str, model: Callable[[], Inventory] | None) -> Side:
    (side,) = read_sides([spec], model)
    return side


def test_two_factories_in_groups() -> None:
    changes = compare_sides(side_of("mxfp8", inventory), side_of("nvfp4", inventory))
    assert len(changes) == 42
    groups = group_changes(changes)
    assert [group.count for group in groups] == [14, 14, 14]
    weights = next(group for group in groups if "linear/weight" in group.text)
    assert weights.text == (
        "linear/weight: MXFP8Quantizer(fp8_dtype=kFloat8E4M3) -> "
        "NVFP4Quantizer(with_2d_quantization=True)"
    )
    assert weights.places == (
        ("layers.0-1.mlp.{down,gate,up}_proj", 6),
        ("layers.0-1.self_attn.{k,o,q,v}_proj", 8),
    )


def test_equal_plans_do_not_differ() -> None:
    assert compare_sides(side_of("mxfp8", inventory), side_of("mxfp8", inventory)) == []


def test_a_lock_file_against_a_factory(tmp_path: Path) -> None:
    path = tmp_path / "qrole.lock"
    write_lock(plan(decoder(), "mxfp8"), path)
    lines = path.read_text().splitlines()
    changed = [line for line in lines if '"layers.0.mlp.up_proj:forward[1]"' not in line]
    path.write_text("\n".join(changed) + "\n")
    changes = compare_sides(side_of(str(path), None), side_of("mxfp8", inventory))
    assert changes == [
        Change(
            "layers.0.mlp.up_proj:forward[1]",
            None,
            "MXFP8Quantizer(fp8_dtype=kFloat8E4M3) for linear/weight",
        )
    ]
    assert group_changes(changes)[0].text.startswith("nothing -> MXFP8Quantizer")


def checkpoint(folder: Path) -> Path:
    tensors = bf16("lm_head")
    for i in range(2):
        for name in "qkvo":
            tensors |= fp8(f"layers.{i}.self_attn.{name}_proj")
        for name in ("gate", "up", "down"):
            tensors |= nvfp4(f"layers.{i}.mlp.{name}_proj")
    folder.mkdir(exist_ok=True)
    write_safetensors(folder / "model.safetensors", tensors)
    config = compressed(
        (FP8_GROUP, [r"re:.*self_attn\..*"]), (NVFP4_GROUP, [r"re:.*mlp\..*"]), ignore=["lm_head"]
    )
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder


def test_a_checkpoint_against_a_factory(tmp_path: Path) -> None:
    sides = side_of(str(checkpoint(tmp_path / "c")), None), side_of("nvfp4", inventory)
    groups = group_changes(compare_sides(*sides))
    assert [(g.text, g.count, g.places) for g in groups] == [
        ("fp8_channel -> nvfp4", 8, (("layers.0-1.self_attn.{k,o,q,v}_proj", 8),))
    ]


def test_two_checkpoints(tmp_path: Path) -> None:
    one, two = checkpoint(tmp_path / "one"), checkpoint(tmp_path / "two")
    assert compare_sides(side_of(str(one), None), side_of(str(two), None)) == []


def test_a_manifest_against_its_checkpoint(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c")
    encodings = {
        f"layers.{i}.{block}_proj": encoding
        for i in range(2)
        for blocks, encoding in (
            ([f"self_attn.{n}" for n in "qkvo"], "fp8_channel"),
            ([f"mlp.{n}" for n in ("gate", "up")], "nvfp4"),
        )
        for block in blocks
    }
    layers = {module: {"format": {"encoding": e}} for module, e in encodings.items()}
    path = folder / "qrole_manifest.json"
    path.write_text(json.dumps({"schema": "qrole.manifest/1", "layers": layers}))
    changes = compare_sides(side_of(str(path), None), side_of(str(folder), None))
    assert changes == [
        Change(f"layers.{i}.mlp.down_proj", "high precision", "nvfp4") for i in range(2)
    ]


def test_experts_have_the_names_that_checkpoints_give_them() -> None:
    side = side_of("mxfp8", lambda: inspect(fused_experts()))
    assert side.weights == {
        "o_proj": "mxfp8",
        "mlp.experts.*.gate_proj": "mxfp8",
        "mlp.experts.*.up_proj": "mxfp8",
        "mlp.experts.*.down_proj": "mxfp8",
    }


def test_a_factory_needs_a_model() -> None:
    with pytest.raises(UsageError, match="no model is named"):
        side_of("mxfp8", None)


def test_a_lock_file_knows_no_weights(tmp_path: Path) -> None:
    path = tmp_path / "qrole.lock"
    write_lock(plan(decoder(), "mxfp8"), path)
    lock, stored = side_of(str(path), None), side_of(str(checkpoint(tmp_path / "c")), None)
    for sides in ((lock, stored), (stored, lock)):
        with pytest.raises(UsageError, match="knows slots"):
            compare_sides(*sides)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("config.json", {}, UsageError),
        ("qrole_manifest.json", {"schema": "other"}, CheckpointError),
        ("qrole_manifest.json", {"schema": "qrole.manifest/1"}, CheckpointError),
    ],
)
def test_what_is_no_manifest(
    tmp_path: Path, name: str, content: dict[str, Any], error: type[Exception]
) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(error):
        side_of(str(tmp_path / name), None)
