"""Kinds of failures that others' quantized checkpoints had, each impossible here or refused.

Numbers name the kinds of public failure. Kinds that only an engine can show (19) are in
the acceptance tests; spoilt files (29 among them) are in the tests of verification.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qrole import (
    DType,
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    IdentityQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
)
from qrole.calibrate import DeadExperts, parse_rule
from qrole.checkpoint.apply import ApplyReport, apply
from qrole.checkpoint.constraints import OnShape
from qrole.checkpoint.engines import Level
from qrole.checkpoint.fused import DEFAULT_FUSIONS, Fusion
from qrole.checkpoint.inputs import CalibrationOptions
from qrole.checkpoint.job import ApplyOptions, Job, prepare
from qrole.checkpoint.schemes import Fp8Mode
from qrole.checkpoint.targets import hits
from qrole.checkpoint.verify import verify
from qrole.errors import ConfigError, UsageError
from tests.runtime.checkpoint.corruption import llama_like

E4M3 = DType.kFloat8E4M3
HIGH = IdentityQuantizer


def mxfp8() -> Any:
    return MXFP8Quantizer(E4M3)


def fp8() -> Any:
    return Float8CurrentScalingQuantizer(E4M3, "cpu")


def blocks() -> Any:
    return Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True)


def by_name(choices: dict[str, Callable[[], Any]], default: Callable[[], Any]) -> Any:
    """The first choice whose key is part of the role's name."""

    def factory(role: Any) -> Any:
        return next((make for part, make in choices.items() if part in role.name), default)()

    return factory


def plan(source: Path, factory: Any, **options: Any) -> Job:
    return prepare(str(source), factory, ApplyOptions(**{"weight_only": True, **options}))


def quantization(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(job.documents["config.json"])["quantization_config"]
    return found


def add(source: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Adds tensors to a source of one file."""
    path = source / "model.safetensors"
    save_file(load_file(path) | tensors, path, metadata={"format": "pt"})


def configure(source: Path, **keys: Any) -> None:
    path = source / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys, indent=2))


def matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(9)).bfloat16()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return llama_like(tmp_path / "source")


@pytest.fixture
def experts(source: Path) -> Path:
    """A layer of four experts with a router and a shared expert's gate."""
    base = "model.layers.1.mlp"
    tensors = {
        f"{base}.gate.weight": matrix(4, 128),
        f"{base}.shared_expert_gate.weight": matrix(1, 128),
    }
    for i in range(4):
        for name, shape in (("gate", (64, 128)), ("up", (64, 128)), ("down", (128, 64))):
            tensors[f"{base}.experts.{i}.{name}_proj.weight"] = matrix(*shape)
    add(source, tensors)
    return source


def test_1_some_shards_of_a_fused_layer(source: Path) -> None:
    with pytest.raises(ConfigError, match=r"q_proj, .*k_proj, .*v_proj are one layer") as caught:
        plan(source, by_name({"q_proj": HIGH}, fp8))
    assert "q_proj: high precision" in caught.value.given


def test_1_a_sibling_that_the_model_lacks_is_ignored_with_the_others(source: Path) -> None:
    path = source / "model.safetensors"
    tensors = load_file(path)
    for i in range(2):
        del tensors[f"model.layers.{i}.self_attn.v_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    ignore = quantization(plan(source, by_name({"self_attn": HIGH}, fp8)))["ignore"]
    for name in ("q_proj", "k_proj", "v_proj"):
        assert any(hits(entry, f"model.layers.0.self_attn.{name}") for entry in ignore)


def test_2_shards_with_different_schemes(source: Path) -> None:
    with pytest.raises(ConfigError, match=r"q_proj: fp8_tensor_a16; .*k_proj: nvfp4_a16"):
        plan(source, by_name({"q_proj": fp8}, NVFP4Quantizer))


def mixed(source: Path) -> Job:
    return plan(source, by_name({"layers.0.mlp": NVFP4Quantizer, "mlp": mxfp8}, fp8))


def test_3_4_5_targets_are_disjoint_and_no_classes(source: Path) -> None:
    job = mixed(source)
    groups = quantization(job)["config_groups"].values()
    assert len(groups) == 3
    for module in job.selection.modules:
        found = [g for g in groups if any(hits(t, module) for t in g["targets"])]
        assert len(found) == (module in job.selection.layers), module
    assert not any(t == "Linear" for g in groups for t in g["targets"])


def test_6_every_group_has_its_format(source: Path) -> None:
    found = quantization(mixed(source))
    formats = {g["format"] for g in found["config_groups"].values()}
    assert formats == {"float-quantized", "nvfp4-pack-quantized", "mxfp8-quantized"}
    assert found["format"] == "mixed-precision"


def test_9_one_layers_experts_in_high_precision(experts: Path) -> None:
    add(
        experts,
        {
            f"model.layers.0.mlp.experts.{i}.{n}_proj.weight": matrix(*s)
            for i in range(4)
            for n, s in (("gate", (64, 128)), ("up", (64, 128)), ("down", (128, 64)))
        },
    )
    found = quantization(plan(experts, by_name({"layers.0.mlp.experts": HIGH}, fp8)))
    (group,) = found["config_groups"].values()
    zero, one = (f"model.layers.{i}.mlp.experts.3.up_proj" for i in (0, 1))
    assert not any(hits(t, zero) for t in group["targets"])
    assert any(hits(t, one) for t in group["targets"])
    assert any(hits(t, zero) for t in found["ignore"])


def test_10_names_in_ignore_are_names_of_the_checkpoint(source: Path) -> None:
    job = plan(source, by_name({"self_attn": HIGH}, fp8))
    for entry in quantization(job)["ignore"]:
        assert any(hits(entry, module) for module in job.selection.modules), entry


def test_13_an_ignored_router_leaves_gate_proj_alone(experts: Path) -> None:
    job = plan(experts, by_name({}, fp8))
    ignore = quantization(job)["ignore"]
    assert any(hits(entry, "model.layers.1.mlp.gate") for entry in ignore)
    assert not any(hits(entry, m) for entry in ignore for m in job.selection.layers)
    assert all(entry.endswith("$") for entry in ignore if entry.startswith("re:"))


def test_14_modelopt_lists_every_layer(source: Path) -> None:
    factory = by_name({"self_attn": fp8}, NVFP4Quantizer)
    job = plan(source, factory, layout="modelopt", weight_only=False)
    found = quantization(job)
    assert found["quant_algo"] == "MIXED_PRECISION"
    assert found["quantized_layers"].keys() == job.selection.layers.keys()
    assert set(found["ignore"]) == set(job.selection.modules) - job.selection.layers.keys()


def test_15_modelopt_names_that_are_part_of_others(source: Path) -> None:
    add(source, {"model.layers.1.mlp.gate.weight": matrix(4, 128)})
    job = plan(source, by_name({}, fp8), layout="modelopt", weight_only=False)
    with pytest.raises(ConfigError, match=r"mlp\.gate stays .* is part of .*mlp\.gate_proj"):
        assert job.documents


def test_16_17_routers_stay_and_are_ignored(experts: Path) -> None:
    job = plan(experts, by_name({}, NVFP4Quantizer))
    for name in ("model.layers.1.mlp.gate", "model.layers.1.mlp.shared_expert_gate"):
        assert name not in job.selection.layers
        assert any(hits(entry, name) for entry in quantization(job)["ignore"])


def test_21_experts_are_targeted_by_a_pattern(experts: Path) -> None:
    job = plan(experts, by_name({"self_attn": fp8}, NVFP4Quantizer))
    targets = [t for g in quantization(job)["config_groups"].values() for t in g["targets"]]
    chosen = [t for t in targets if hits(t, "model.layers.1.mlp.experts.2.down_proj")]
    assert chosen
    assert all(t.startswith("re:") and "experts" in t for t in chosen)


MOE = """
import torch
from torch import nn
import torch.nn.functional as F

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden_size = 64
        self.gate_up_proj = nn.Parameter(torch.randn(4, 96, 64) * 0.1)
        self.down_proj = nn.Parameter(torch.randn(4, 64, 48) * 0.1)

    def forward(self, x):
        y = torch.zeros_like(x)
        for i in (0, 1, 3):  # the router never picks expert 2
            gate, up = F.linear(x, self.gate_up_proj[i]).chunk(2, -1)
            y = y + F.linear(F.silu(gate) * up, self.down_proj[i])
        return y

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.experts = Experts()

    def forward(self, x):
        return self.experts(x)

def build():
    return Model()

def example_inputs():
    return (torch.randn(16, 64, generator=torch.Generator().manual_seed(0)),)
"""


@pytest.fixture
def moe(tmp_path: Path) -> str:
    path = tmp_path / "moe.py"
    path.write_text(MOE)
    return str(path)


def dead_amaxes(out: Path) -> tuple[dict[str, float], dict[str, str]]:
    record = json.loads((out / "qrole_manifest.json").read_text())["calibration"]
    return record["input_amax"], record["dead_experts"]


@pytest.mark.parametrize("policy", [DeadExperts.SIBLING, DeadExperts.WEIGHT])
def test_22_23_an_expert_without_tokens(moe: str, tmp_path: Path, policy: DeadExperts) -> None:
    out = tmp_path / "out"
    how = CalibrationOptions(dead_experts=policy, rules=(parse_rule("mse"),))
    report = apply(moe, "nvfp4", out, calibration=how)
    assert any("2 expert layers saw no token" in note for note in report.notes)
    amaxes, dead = dead_amaxes(out)
    assert dead == dict.fromkeys(("experts.2.gate_up_proj", "experts.2.down_proj"), policy.value)
    if policy is DeadExperts.SIBLING:
        others = [amaxes[f"experts.{i}.down_proj"] for i in (0, 1, 3)]
        assert amaxes["experts.2.down_proj"] == max(others)
    assert verify(out, moe).ok
    stored = load_file(out / "model.safetensors")
    scales = [t for n, t in stored.items() if n.endswith("input_global_scale")]
    assert len(scales) == 8
    assert all(bool(s.isfinite() & (s > 0)) for s in scales)


def test_22_an_expert_without_tokens_may_be_a_failure(moe: str, tmp_path: Path) -> None:
    how = CalibrationOptions(dead_experts=DeadExperts.FAIL)
    with pytest.raises(UsageError, match="2 experts saw no token: experts expert 2"):
        apply(moe, "nvfp4", tmp_path / "out", calibration=how)


def test_24_multi_token_prediction_is_carried_over_and_ignored(
    source: Path, tmp_path: Path
) -> None:
    configure(source, num_nextn_predict_layers=1)
    extra = {
        "mtp.layers.0.mlp.down_proj.weight": matrix(128, 256),
        "model.layers.2.mlp.down_proj.weight": matrix(128, 256),
    }
    add(source, extra)
    apply(str(source), "mxfp8", tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    for name, tensor in extra.items():
        assert torch.equal(stored[name], tensor)
        module = name.removesuffix(".weight")
        assert any(hits(e, module) for e in config["quantization_config"]["ignore"])
    assert verify(tmp_path / "out", str(source)).ok


def global_scales(out: Path) -> dict[str, float]:
    stored = load_file(out / "model.safetensors")
    suffix = ".weight_global_scale"
    return {n.removesuffix(suffix): float(t) for n, t in stored.items() if n.endswith(suffix)}


def test_26_fused_neighbours_share_their_scale(source: Path, tmp_path: Path) -> None:
    apply(str(source), "nvfp4", tmp_path / "out", options=ApplyOptions(weight_only=True))
    scales, weights = global_scales(tmp_path / "out"), load_file(source / "model.safetensors")
    for i in range(2):
        gate, up = (f"model.layers.{i}.mlp.{n}_proj" for n in ("gate", "up"))
        amax = max(float(weights[f"{m}.weight"].abs().max()) for m in (gate, up))
        assert scales[gate] == scales[up] == pytest.approx(2688 / amax)
    assert scales["model.layers.0.mlp.down_proj"] != scales["model.layers.0.mlp.gate_proj"]


@pytest.mark.parametrize("names", [("to_q", "to_k", "to_v"), ("a", "b", "c")])
def test_28_other_spellings_of_fused_layers(tmp_path: Path, names: tuple[str, ...]) -> None:
    weights = tmp_path / "w.safetensors"
    save_file(
        {f"blocks.0.attn.{n}.weight": matrix(64, 64) * i for i, n in enumerate(names, 1)}, weights
    )
    options = ApplyOptions(weight_only=True, fusions=(Fusion(("a", "b", "c")), *DEFAULT_FUSIONS))
    apply(str(weights), "nvfp4", tmp_path / "out", options=options)
    assert len(set(global_scales(tmp_path / "out").values())) == 1


def test_30_block_scales_saturate(tmp_path: Path) -> None:
    """A calibrated or shared range below a block's own must not give NaN scales."""
    from qrole_kernels import reference

    x = matrix(16, 64).float()
    _, scales = reference.quantize_nvfp4(x, x.abs().max() / 100, 1)
    assert int(scales.max()) == 0x7E


def test_31_blocks_of_zeros(tmp_path: Path) -> None:
    lonely = torch.zeros(256, 256)
    lonely[0, 0] = 1
    weights = tmp_path / "w.safetensors"
    save_file({"a.weight": lonely}, weights)
    apply(str(weights), "float8_block_scaling", tmp_path / "out")
    scales = load_file(tmp_path / "out" / "model.safetensors")["a.weight_scale"]
    assert bool((scales.isfinite() & (scales > 0)).all())


def test_34_shards_that_cut_a_block(source: Path) -> None:
    job = plan(source, by_name({"self_attn": HIGH}, blocks), weight_only=False)
    assert any("stay whole on at most 2 GPUs" in note for note in job.selection.notes)
    with pytest.raises(UsageError, match=r"vLLM joins layers of whole 128-row blocks .*k_proj"):
        plan(source, by_name({}, blocks), weight_only=False, engines=("vllm",))


def test_36_columns_that_no_block_divides(source: Path) -> None:
    add(source, {"model.layers.0.odd.weight": matrix(64, 100)})
    with pytest.raises(ConfigError, match=r"layers\.0\.odd: 100 columns are no multiple of 16"):
        plan(source, by_name({}, NVFP4Quantizer))
    job = plan(source, by_name({}, NVFP4Quantizer), on_shape=OnShape.FALLBACK)
    assert job.selection.kept["model.layers.0.odd.weight"].reason.startswith("100 columns")
    assert any(hits(e, "model.layers.0.odd") for e in quantization(job)["ignore"])


def test_36_what_engines_join_falls_back_together(experts: Path) -> None:
    add(experts, {"model.layers.1.mlp.experts.3.down_proj.weight": matrix(128, 72)})
    job = plan(experts, by_name({}, NVFP4Quantizer), on_shape=OnShape.FALLBACK)
    assert not any(".experts." in module for module in job.selection.layers)
    assert "model.layers.1.mlp.experts.0.up_proj.weight" in job.selection.kept


def test_38_a_head_is_in_high_precision_or_declared(source: Path) -> None:
    kept = plan(source, by_name({}, fp8))
    assert "lm_head" in quantization(kept)["ignore"]
    assert not [p for s in kept.shards for p in s.places if p.tensor.name == "lm_head.weight_scale"]
    job = plan(source, by_name({}, fp8), quantize_head=True)
    (group,) = quantization(job)["config_groups"].values()
    assert "lm_head" in group["targets"]
    assert "lm_head" not in quantization(job)["ignore"]


def test_39_a_tied_head_is_not_written(source: Path, tmp_path: Path) -> None:
    configure(source, tie_word_embeddings=True)
    apply(str(source), "mxfp8", tmp_path / "out")
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    assert "lm_head" in config["quantization_config"]["ignore"]
    assert verify(tmp_path / "out", str(source)).ok


def test_40_tied_parameters_of_a_model_are_written_once(samples: Path, tmp_path: Path) -> None:
    apply(str(samples / "llama_tiny.py"), "mxfp8", tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert "lm_head.weight" not in stored
    assert "embed_tokens.weight" in stored


def test_41_files_that_are_no_weights_are_copied(source: Path, tmp_path: Path) -> None:
    for name in ("preprocessor_config.json", "chat_template.jinja", "modeling.py", "merges.txt"):
        (source / name).write_text(name)
    (source / "pytorch_model.bin").write_text("weights")
    apply(str(source), "mxfp8", tmp_path / "out")
    copied = {p.name for p in (tmp_path / "out").iterdir()}
    assert {"preprocessor_config.json", "chat_template.jinja", "modeling.py", "merges.txt"} < copied
    assert "pytorch_model.bin" not in copied


def test_42_the_config_is_edited_in_place(source: Path, tmp_path: Path) -> None:
    text = '{\n  "rope_scaling": {"type": "su", "factor": 1.0e3},\n  "num_experts": 4\n}'
    (source / "config.json").write_text(text)
    apply(str(source), "mxfp8", tmp_path / "out")
    found = (tmp_path / "out" / "config.json").read_text()
    assert found.startswith(text.rstrip("\n}"))


def test_43_44_keys_that_readers_know(source: Path) -> None:
    found = quantization(mixed(source))
    assert found["quantization_status"] == "compressed"
    known = {"num_bits", "type", "symmetric", "dynamic", "strategy", "group_size", "scale_dtype"}
    for group in found["config_groups"].values():
        assert group.keys() == {
            "format", "targets", "weights", "input_activations", "output_activations",
        }  # fmt: skip
        assert group["weights"].keys() <= known


def level(job: Job, engine: str) -> Level:
    return next(v.level for v in job.verdicts if v.engine == engine)


def test_47_48_what_engines_do_not_load_is_said_and_refused(source: Path) -> None:
    options = {"layout": "modelopt", "weight_only": False, "fp8": Fp8Mode.CHANNEL}
    job = plan(source, by_name({}, fp8), **options)
    assert level(job, "sglang") is Level.NO
    assert level(job, "transformers") is Level.NO
    for engine, reason in (("sglang", "takes static FP8 only"), ("transformers", "without scales")):
        with pytest.raises(UsageError, match=rf"{reason}.*q_proj"):
            plan(source, by_name({}, fp8), **options, engines=(engine,))


def test_a_float16_model_in_formats_that_are_read_as_bf16(source: Path, tmp_path: Path) -> None:
    configure(source, torch_dtype="float16")
    with pytest.raises(ConfigError, match="the config names float16"):
        plan(source, by_name({}, NVFP4Quantizer))
    out = tmp_path / "out"
    options = ApplyOptions(weight_only=True, dtype="bfloat16")
    report: ApplyReport = apply(str(source), "nvfp4", out, options=options)
    assert report.schemes == {"nvfp4_a16": 14}
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert verify(out, str(source)).ok
