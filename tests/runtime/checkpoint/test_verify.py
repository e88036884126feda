"""Verification: a sound checkpoint passes, and every planted corruption is found and named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from qrole.checkpoint.apply import apply
from qrole.checkpoint.job import ApplyOptions
from qrole.checkpoint.verify import verify
from qrole.errors import CheckpointError, NothingMatchedError, UsageError
from tests.runtime.checkpoint.corruption import (
    Corruption,
    edit,
    edit_config,
    edit_quantization,
    edit_tensor,
    flip_byte,
    llama_like,
)

DOWN = "model.layers.0.mlp.down_proj"
GATE, UP = "model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj"


def swap_nibbles(codes: torch.Tensor) -> torch.Tensor:
    return (codes >> 4) | (codes << 4)


def without(*names: str) -> Any:
    return edit(lambda tensors: [tensors.pop(name) for name in names])


def renamed(old: str, new: str) -> Any:
    return edit(lambda tensors: tensors.update({new: tensors.pop(old)}))


def group(quantization: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = quantization["config_groups"]["group_0"]
    return found


def duplicate_group(quantization: dict[str, Any]) -> None:
    quantization["config_groups"]["group_1"] = dict(group(quantization))


def gate_alone(directory: Path) -> None:
    """Writes one of gate and up in high precision, and declares it so."""

    def weights(tensors: dict[str, torch.Tensor]) -> None:
        for part in ("weight_packed", "weight_scale", "weight_global_scale"):
            del tensors[f"{GATE}.{part}"]
        tensors[f"{GATE}.weight"] = torch.zeros(256, 128).bfloat16()

    def declaration(quantization: dict[str, Any]) -> None:
        others = r"re:.*\.(q|k|v|o|up|down)_proj$"
        group(quantization)["targets"] = [others, r"re:.*layers\.0\.mlp\.gate_proj$"]
        quantization["ignore"].append(GATE)

    edit(weights)(directory)
    edit_quantization(declaration)(directory)


def bumped(scales: torch.Tensor) -> torch.Tensor:
    changed = scales.clone()
    changed[3, 2] += 1
    return changed


CORRUPTIONS = {
    "swapped nibbles": Corruption(
        "wrong-values", edit_tensor(f"{DOWN}.weight_packed", swap_nibbles)
    ),
    "one byte of the codes": Corruption("wrong-values", flip_byte(f"{DOWN}.weight_packed")),
    "rows in another order": Corruption(
        "wrong-values", edit_tensor(f"{DOWN}.weight_packed", lambda t: t.flip(0))
    ),
    "inverted global scale": Corruption(
        "wrong-values", edit_tensor(f"{DOWN}.weight_global_scale", lambda t: 1 / t)
    ),
    "inverted FP8 scale": Corruption(
        "wrong-values", edit_tensor(f"{DOWN}.weight_scale", lambda t: 1 / t), "current_scaling"
    ),
    "one block scale doubled": Corruption(
        "wrong-values",
        edit_tensor(f"{DOWN}.weight_scale", bumped),
        "mxfp8",
    ),
    "transposed block scales": Corruption(
        "wrong-values",
        edit_tensor(f"{DOWN}.weight_scale", lambda t: t.flip(1)),
        "mxfp8",
    ),
    "missing block scale": Corruption("missing-part", without(f"{DOWN}.weight_scale")),
    "missing global scale": Corruption("missing-part", without(f"{DOWN}.weight_global_scale")),
    "missing codes": Corruption("lost-tensor", without(f"{DOWN}.weight_packed")),
    "zero global scale": Corruption(
        "bad-scale", edit_tensor(f"{DOWN}.weight_global_scale", torch.zeros_like)
    ),
    "infinite global scale": Corruption(
        "bad-scale", edit_tensor(f"{DOWN}.weight_global_scale", lambda t: t * torch.inf)
    ),
    "NaN block scale": Corruption(
        "bad-scale",
        edit_tensor(
            f"{DOWN}.weight_scale",
            lambda t: torch.full_like(t.view(torch.uint8), 0x7F).view(t.dtype),
        ),
    ),
    "NaN codes": Corruption(
        "nan-code",
        edit_tensor(
            f"{DOWN}.weight", lambda t: torch.full_like(t.view(torch.uint8), 0xFF).view(t.dtype)
        ),
        "current_scaling",
    ),
    "scalar instead of [1]": Corruption(
        "wrong-part", edit_tensor(f"{DOWN}.weight_global_scale", lambda t: t.reshape(()))
    ),
    "MX scales typed as E8M0": Corruption(
        "wrong-part",
        edit_tensor(f"{DOWN}.weight_scale", lambda t: t.view(torch.float8_e8m0fnu)),
        "mxfp8",
    ),
    "names of another layout": Corruption(
        "missing-part", renamed(f"{DOWN}.weight_packed", f"{DOWN}.weight")
    ),
    "stray scale": Corruption(
        "stray-part", edit(lambda t: t.update({f"{DOWN}.weight_scale_inv": torch.ones(1)}))
    ),
    "unequal scales of fused neighbours": Corruption(
        "fused-scales", edit_tensor(f"{GATE}.weight_global_scale", lambda t: t * 1.5)
    ),
    "one fused neighbour in high precision": Corruption("fused-schemes", gate_alone),
    "too wide an ignore": Corruption(
        "wide-ignore", edit_quantization(lambda q: q["ignore"].append("re:.*mlp.gate"))
    ),
    "a glob in ignore": Corruption(
        "glob", edit_quantization(lambda q: q.update(ignore=["*lm_head*"]))
    ),
    "a layer that is not declared": Corruption(
        "undeclared", edit_quantization(lambda q: q.update(ignore=[]))
    ),
    "overlapping groups": Corruption("overlapping-targets", edit_quantization(duplicate_group)),
    "a class target": Corruption(
        "class-target", edit_quantization(lambda q: group(q)["targets"].append("Linear"))
    ),
    "an open pattern": Corruption(
        "open-pattern", edit_quantization(lambda q: group(q)["targets"].append("re:.*q_pro"))
    ),
    "status not compressed": Corruption(
        "config-status", edit_quantization(lambda q: q.pop("quantization_status"))
    ),
    "wrong format": Corruption(
        "config-format", edit_quantization(lambda q: group(q).update(format="float-quantized"))
    ),
    "no format in the group": Corruption(
        "config-format", edit_quantization(lambda q: group(q).pop("format"))
    ),
    "an unknown key in the arguments": Corruption(
        "config-key", edit_quantization(lambda q: group(q)["weights"].update(qrole_note="x"))
    ),
    "another group size": Corruption(
        "config-scheme", edit_quantization(lambda q: group(q)["weights"].update(group_size=32))
    ),
    "a changed config": Corruption(
        "config-changed", edit_config(lambda config: config.update(rope_theta=10000.0))
    ),
    "a lost norm": Corruption("lost-tensor", without("model.layers.0.input_layernorm.weight")),
    "a changed norm": Corruption(
        "changed-tensor", flip_byte("model.layers.0.input_layernorm.weight")
    ),
    "a changed bias": Corruption(
        "changed-tensor", flip_byte("model.layers.1.self_attn.q_proj.bias")
    ),
    "an extra tensor": Corruption(
        "extra-tensor", edit(lambda t: t.update({"model.extra.bias": torch.ones(2)}))
    ),
    "a lost tokenizer": Corruption(
        "missing-file", lambda directory: (directory / "tokenizer.json").unlink()
    ),
    "a changed tokenizer": Corruption(
        "changed-file", lambda directory: (directory / "tokenizer.json").write_text("{}")
    ),
    "stale weights": Corruption(
        "stale-weights", lambda directory: (directory / "pytorch_model.bin").touch()
    ),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_like(tmp_path_factory.mktemp("verify") / "source")


@pytest.fixture(scope="module")
def made(source: Path) -> dict[str, Path]:
    """Sound checkpoints by factory."""
    options = ApplyOptions(weight_only=True)
    outs = {}
    for factory in ("nvfp4", "mxfp8", "current_scaling"):
        outs[factory] = source.parent / factory
        apply(str(source), factory, outs[factory], options=options)
    return outs


@pytest.mark.parametrize("factory", ["nvfp4", "mxfp8", "current_scaling"])
def test_a_sound_checkpoint(source: Path, made: dict[str, Path], factory: str) -> None:
    report = verify(made[factory], str(source))
    assert report.ok, report.problems
    assert len(report.errors) == 14
    assert all(error.worst <= 1 for error in report.errors)
    assert report.unchanged == 6


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_planted_corruption(source: Path, made: dict[str, Path], tmp_path: Path, name: str) -> None:
    corruption = CORRUPTIONS[name]
    spoiled = Path(shutil.copytree(made[corruption.factory], tmp_path / "spoiled"))
    corruption.spoil(spoiled)
    report = verify(spoiled, str(source))
    assert corruption.kind in {problem.kind for problem in report.problems}, report.problems


def test_shards_and_their_index(tmp_path: Path) -> None:
    source = llama_like(tmp_path / "source", shards=3)
    out = tmp_path / "out"
    apply(str(source), "mxfp8", out)
    assert verify(out, str(source)).ok
    index = out / "model.safetensors.index.json"
    spoiled = index.read_text().replace('"total_size": ', '"total_size": 1')
    index.write_text(spoiled)
    assert [p.kind for p in verify(out).problems] == ["index-total"]


def test_a_tied_head_that_is_stored(tmp_path: Path) -> None:
    source = llama_like(tmp_path / "source", tied=True)
    out = tmp_path / "out"
    apply(str(source), "mxfp8", out)
    assert verify(out, str(source)).ok
    edit(lambda t: t.update({"lm_head.weight": torch.zeros(64, 128).bfloat16()}))(out)
    assert "tied-head" in {p.kind for p in verify(out, str(source)).problems}


def test_truncated_and_unknown(source: Path, made: dict[str, Path], tmp_path: Path) -> None:
    spoiled = Path(shutil.copytree(made["nvfp4"], tmp_path / "spoiled"))
    weights = spoiled / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        verify(spoiled)
    with pytest.raises(NothingMatchedError, match="declares no quantized layer"):
        verify(source)
    unknown = Path(shutil.copytree(made["nvfp4"], tmp_path / "unknown"))
    edit_quantization(lambda q: q.update(quant_method="gptq"))(unknown)
    with pytest.raises(UsageError, match="quant_method 'gptq'"):
        verify(unknown)
