"""How engines read a quantization_config, entry by entry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qrole.auditing import Engine
from qrole.auditing.declaration import read_declaration
from qrole.auditing.engine_support import missing_support
from qrole.auditing.resolution import resolve
from qrole.errors import CheckpointError, UsageError
from tests.audit.building import (
    FP8_GROUP,
    NVFP4_GROUP,
    Tensors,
    bf16,
    compressed,
    fp8,
    modelopt_fp8,
    mxfp8,
    nvfp4,
    tensor,
    write_safetensors,
)

QKVO = {name: f"layers.0.self_attn.{name}_proj" for name in "qkvo"}
ALL_BF16: Tensors = {}
for _path in QKVO.values():
    ALL_BF16 |= bf16(_path)


def reading(folder: Path, tensors: Tensors, config: dict[str, Any]) -> dict[Engine, dict[str, str]]:
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    subject = read_declaration(folder, tuple(Engine))
    return {e: {m: r.label for m, r in resolve(e, subject).items()} for e in Engine}


def test_a_class_target_beside_a_regular_expression(tmp_path: Path) -> None:
    config = compressed(
        (NVFP4_GROUP, ["Linear"]), (FP8_GROUP, [r"re:.*\.(q|k|v|o)_proj$"]), ignore=[]
    )
    found = reading(tmp_path, ALL_BF16, config)
    assert found[Engine.VLLM] == dict.fromkeys(QKVO.values(), "fp8_channel")
    assert found[Engine.SGLANG] == {
        QKVO["q"]: "nvfp4",
        QKVO["k"]: "nvfp4",
        QKVO["v"]: "nvfp4",
        QKVO["o"]: "fp8_channel",
    }


def test_the_first_shard_of_a_fused_layer_decides(tmp_path: Path) -> None:
    config = compressed(
        (NVFP4_GROUP, [QKVO["k"], QKVO["v"]]), (FP8_GROUP, [QKVO["q"], QKVO["o"]]), ignore=[]
    )
    found = reading(tmp_path, ALL_BF16, config)
    assert found[Engine.VLLM][QKVO["k"]] == "fp8_channel"
    assert found[Engine.TRANSFORMERS][QKVO["k"]] == "nvfp4"


def test_ties_go_by_the_file_or_by_the_alphabet(tmp_path: Path) -> None:
    config = compressed((NVFP4_GROUP, [r"re:.*z.*|.*o_proj$"]), (FP8_GROUP, ["re:.*"]), ignore=[])
    found = reading(tmp_path, ALL_BF16, config)
    assert found[Engine.VLLM][QKVO["o"]] == "nvfp4"
    assert found[Engine.TRANSFORMERS][QKVO["o"]] == "fp8_channel"


def test_a_fused_name_is_a_target_in_vllm_only(tmp_path: Path) -> None:
    config = compressed((FP8_GROUP, ["layers.0.self_attn.qkv_proj"]), ignore=[QKVO["o"]])
    found = reading(tmp_path, ALL_BF16, config)
    assert found[Engine.VLLM][QKVO["q"]] == "fp8_channel"
    assert found[Engine.TRANSFORMERS][QKVO["q"]] == "not quantized"


def test_an_unlisted_layer_is_refused_by_sglang_only(tmp_path: Path) -> None:
    config = compressed((FP8_GROUP, [r"re:.*\.(q|k|v)_proj$"]), ignore=[])
    found = reading(tmp_path, ALL_BF16, config)
    assert found[Engine.VLLM][QKVO["o"]] == "not quantized"
    assert found[Engine.SGLANG][QKVO["o"]] == "refuses: neither a target nor ignored"


def test_half_an_ignored_fused_layer_is_refused(tmp_path: Path) -> None:
    config = compressed((FP8_GROUP, [r"re:.*\.(q|k|v|o)_proj$"]), ignore=[QKVO["q"]])
    found = reading(tmp_path, ALL_BF16, config)
    for engine in (Engine.VLLM, Engine.SGLANG):
        label = found[engine][QKVO["v"]]
        assert label == "refuses: of its fused layer, k_proj, v_proj is not ignored"
    assert found[Engine.TRANSFORMERS][QKVO["q"]] == "not quantized"
    assert found[Engine.TRANSFORMERS][QKVO["v"]] == "fp8_channel"


def test_sglang_takes_dotted_suffixes_as_ignored(tmp_path: Path) -> None:
    config = compressed((FP8_GROUP, [r"re:.*_proj$"]), ignore=["self_attn.o_proj"])
    found = reading(tmp_path, ALL_BF16, config)
    assert found[Engine.SGLANG][QKVO["o"]] == "not quantized"
    assert found[Engine.VLLM][QKVO["o"]] == "fp8_channel"


def test_modelopt_excludes_parts_of_names_in_vllm(tmp_path: Path) -> None:
    tensors = modelopt_fp8("layers.1.mlp.up_proj") | modelopt_fp8("layers.10.mlp.up_proj")
    config = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["layers.1"]}
    found = reading(tmp_path, tensors, config)
    assert found[Engine.VLLM] == dict.fromkeys(
        ("layers.1.mlp.up_proj", "layers.10.mlp.up_proj"), "not quantized"
    )
    assert set(found[Engine.SGLANG].values()) == {"fp8_tensor"}
    assert found[Engine.TRANSFORMERS] == {}


def test_modelopt_without_an_algorithm_it_knows(tmp_path: Path) -> None:
    config = {"quant_method": "modelopt", "quant_algo": "W3A3", "ignore": []}
    found = reading(tmp_path, modelopt_fp8("fc"), config)
    assert found[Engine.VLLM] == {"fc": "does not know quant_algo 'W3A3'"}


def test_fp8_blocks_convert_everything_that_is_not_excluded(tmp_path: Path) -> None:
    tensors = bf16("fc") | bf16("other") | bf16("lm_head")
    config = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["other"],
    }
    found = reading(tmp_path, tensors, config)
    expected = {"fc": "fp8_block", "other": "not quantized", "lm_head": "not quantized"}
    assert all(found[engine] == expected for engine in Engine)


def test_a_method_without_a_reader_is_not_read(tmp_path: Path) -> None:
    found = reading(tmp_path, bf16("fc"), {"quant_method": "gptq"})
    assert not any(found.values())


BLOCK = {"fc.weight": tensor("F8_E4M3", 256, 384), "fc.weight_scale_inv": tensor("F32", 2, 3)}
TENSOR = {"fc.weight": tensor("F8_E4M3", 256, 384), "fc.weight_scale": tensor("F32", 1)}


@pytest.mark.parametrize(
    ("tensors", "encoding"),
    [
        (bf16("fc"), ""),
        (fp8("fc"), "fp8_channel"),
        (TENSOR, "fp8_tensor"),
        (BLOCK, "fp8_block"),
        (mxfp8("fc"), "mxfp8"),
        (nvfp4("fc"), "nvfp4"),
        (modelopt_fp8("fc"), "fp8_tensor"),
        ({"fc.weight": tensor("F8_E4M3", 256, 256)}, "unknown"),
        (
            {"fc.weight_packed": tensor("U8", 64, 32), "fc.weight_scale": tensor("U8", 64, 2)},
            "mxfp4",
        ),
    ],
)
def test_encodings_are_known_by_their_tensors(
    tmp_path: Path, tensors: Tensors, encoding: str
) -> None:
    write_safetensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "x"}}')
    assert read_declaration(tmp_path).stored["fc"].encoding == encoding


def test_modelopt_without_a_config_is_read_from_its_own_file(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", modelopt_fp8("fc"))
    nested = {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": nested}))
    subject = read_declaration(tmp_path)
    assert subject.method == "modelopt"
    assert subject.excluded == ("lm_head",)
    assert subject.engines == (Engine.VLLM, Engine.SGLANG, Engine.TENSORRT_LLM)


def test_a_directory_without_a_declaration_is_refused(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", bf16("fc"))
    with pytest.raises(UsageError, match="declares no quantization"):
        read_declaration(tmp_path)


def test_a_broken_declaration_is_a_broken_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "hf_quant_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_declaration(tmp_path)


@pytest.mark.parametrize(
    ("engine", "asked", "missing"),
    [
        (Engine.VLLM, {("mxfp4", False), ("nvfp4", True)}, 0),
        (Engine.SGLANG, {("mxfp8", False)}, 0),
        (Engine.SGLANG, {("mxfp8", False), ("nvfp4_a16", False), ("fp8_block", False)}, 1),
        (Engine.TENSORRT_LLM, {("fp8_tensor", False), ("nvfp4", False)}, 0),
        (Engine.TENSORRT_LLM, {("mxfp4", False)}, 1),
        (Engine.TRANSFORMERS, {("nvfp4", True)}, 1),
        (Engine.TRANSFORMERS, {("nvfp4", False)}, 0),
    ],
)
def test_what_engines_load_from_one_layout(
    engine: Engine, asked: set[tuple[str, bool]], missing: int
) -> None:
    assert len(missing_support(engine, asked)) == missing


def test_fp8_may_be_stored_per_channel_only_before_it_is_written() -> None:
    asked = {("fp8_tensor", False)}
    assert not missing_support(Engine.TENSORRT_LLM, asked)
    assert missing_support(Engine.TENSORRT_LLM, asked, "compressed-tensors")
