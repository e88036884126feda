"""`apply` as a library: what it writes, and that workers and resumption leave no trace in it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qrole import DType, Float8CurrentScalingQuantizer, IdentityQuantizer, NVFP4Quantizer
from qrole.checkpoint.apply import apply
from qrole.checkpoint.inputs import CalibrationOptions
from qrole.checkpoint.job import ApplyOptions, prepare
from qrole.checkpoint.verify import verify
from qrole.errors import CheckpointError, UsageError
from tests.runtime.checkpoint.corruption import llama_like

ONLY_WEIGHTS = ApplyOptions(weight_only=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_like(tmp_path_factory.mktemp("apply") / "source", shards=2)


def digest(directory: Path) -> dict[str, str]:
    """Hash of every file, by its path in the directory."""
    files = (p for p in sorted(directory.rglob("*")) if p.is_file())
    return {
        str(p.relative_to(directory)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files
    }


def mixed(role: Any) -> Any:
    if role is not None and "self_attn" in role.name:
        return Float8CurrentScalingQuantizer(DType.kFloat8E4M3, "cpu")
    return NVFP4Quantizer()


@pytest.mark.parametrize("workers", [2, 5])
def test_the_bytes_do_not_depend_on_the_number_of_workers(
    source: Path, tmp_path: Path, workers: int
) -> None:
    for n in (1, workers):
        apply(str(source), mixed, tmp_path / str(n), options=ONLY_WEIGHTS, workers=n)
    assert digest(tmp_path / "1") == digest(tmp_path / str(workers))


def test_what_stands_beside_the_weights(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "pytorch_model.bin").write_bytes(b"stale")
    report = apply(str(source), mixed, out, options=ONLY_WEIGHTS)
    (source / "pytorch_model.bin").unlink()
    assert sorted(p.name for p in out.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "qrole_manifest.json",
        "tokenizer.json",
    ]
    text = (out / "config.json").read_text()
    assert text.startswith((source / "config.json").read_text().rstrip("}\n"))
    assert report.schemes == {"fp8_tensor_a16": 8, "nvfp4_a16": 6}
    manifest = json.loads((out / "qrole_manifest.json").read_text())
    assert manifest["layers"]["model.layers.0.mlp.up_proj"]["answer"] == "NVFP4"
    assert manifest["kept"]["lm_head.weight"].startswith("the output head")
    assert manifest["source"]["files"].keys() == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }
    assert not [p for p in tmp_path.iterdir() if p != out], "no work folder is left"


def test_a_single_file_without_config(source: Path, tmp_path: Path) -> None:
    weights = tmp_path / "plain" / "weights.safetensors"
    weights.parent.mkdir()
    save_file({"a.weight": torch.randn(32, 64), "a.bias": torch.zeros(32)}, weights)
    out = tmp_path / "out"
    apply(str(weights), "mxfp8", out)
    assert verify(out, str(weights)).ok
    assert json.loads((out / "config.json").read_text()).keys() == {"quantization_config"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_source_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = tmp_path / "w.safetensors"
    save_file({"a.weight": torch.randn(64, 64).to(dtype), "n.weight": torch.ones(3)}, weights)
    for factory in ("mxfp8", "nvfp4", "current_scaling"):
        apply(str(weights), factory, tmp_path / factory, options=ONLY_WEIGHTS)
        report = verify(tmp_path / factory, str(weights))
        assert report.ok, report.problems


def test_a_tensor_that_is_not_aligned(tmp_path: Path) -> None:
    """Other writers put an odd number of bytes before a matrix."""
    matrix = torch.randn(32, 64)
    content = bytes([7]) + matrix.numpy().tobytes()
    header = {
        "flag": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "a.weight": {"dtype": "F32", "shape": [32, 64], "data_offsets": [1, len(content)]},
    }
    text = json.dumps(header).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
    apply(str(path), "mxfp8", tmp_path / "out")
    assert verify(tmp_path / "out", str(path)).ok


def test_empty_tensors_are_carried_over(tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    empty = {"e.weight": torch.empty(0, 64), "f.weight": torch.empty(64, 0), "g": torch.empty(0)}
    save_file({"a.weight": torch.randn(64, 64), **empty}, weights)
    apply(str(weights), "mxfp8", tmp_path / "out")
    report = verify(tmp_path / "out", str(weights))
    assert report.ok, report.problems
    assert report.schemes == {"mxfp8": 1}


def narrow(role: Any) -> Any:
    """FP8 blocks for what 128 divides: k and v have 64 rows."""
    return (
        IdentityQuantizer() if role is not None and "self_attn" in role.name else NVFP4Quantizer()
    )


def test_a_source_in_fp8_blocks(tmp_path: Path) -> None:
    base = tmp_path / "bf16"
    llama_like(base)
    tensors = load_file(base / "model.safetensors")
    kept = {n: t for n, t in tensors.items() if "self_attn" not in n}
    save_file(kept, base / "model.safetensors", metadata={"format": "pt"})
    fp8 = tmp_path / "fp8"
    apply(str(base), "float8_block_scaling", fp8, options=ApplyOptions("fp8-block"))
    assert verify(fp8, str(base)).ok
    apply(str(fp8), narrow, tmp_path / "nvfp4", options=ONLY_WEIGHTS)
    report = verify(tmp_path / "nvfp4", str(fp8))
    assert report.ok, report.problems
    assert len(report.errors) == 6


def test_what_stays_of_an_fp8_source_becomes_bf16(tmp_path: Path) -> None:
    base = tmp_path / "w"
    base.mkdir()
    save_file(
        {"a.weight": torch.randn(256, 128), "b.weight": torch.randn(128, 256)},
        base / "model.safetensors",
    )
    (base / "config.json").write_text("{}")
    fp8, out = tmp_path / "fp8", tmp_path / "out"
    apply(str(base), "float8_block_scaling", fp8, options=ApplyOptions("fp8-block"))

    def only_a(role: Any) -> Any:
        return NVFP4Quantizer() if role is not None and role.name == "a" else IdentityQuantizer()

    apply(str(fp8), only_a, out, options=ONLY_WEIGHTS)
    assert verify(out, str(fp8)).ok
    stored, decoded = load_file(out / "model.safetensors"), load_file(fp8 / "model.safetensors")
    assert stored["b.weight"].dtype == torch.bfloat16
    scale = decoded["b.weight_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
    assert torch.equal(stored["b.weight"], (decoded["b.weight"].float() * scale).bfloat16())


def test_a_source_that_is_quantized_otherwise(source: Path, tmp_path: Path) -> None:
    apply(str(source), "mxfp8", tmp_path / "once")
    with pytest.raises(
        UsageError, match=r"is quantized already .quant_method 'compressed-tensors'"
    ):
        apply(str(tmp_path / "once"), "mxfp8", tmp_path / "twice")


@pytest.mark.parametrize(
    ("value", "factory", "what"),
    [
        (torch.inf, "mxfp8", "an infinity"),
        (torch.nan, "mxfp8", "a NaN"),
        (torch.inf, "nvfp4", "an infinity"),
        (torch.nan, "nvfp4", "a NaN"),
    ],
)
def test_weights_that_are_not_finite(tmp_path: Path, value: float, factory: str, what: str) -> None:
    matrix = torch.randn(64, 64)
    matrix[40, 3] = value
    save_file({"a.weight": matrix}, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match=rf"the weight a\.weight holds {what}"):
        apply(str(tmp_path / "w.safetensors"), factory, tmp_path / "out", options=ONLY_WEIGHTS)
    assert not (tmp_path / "out").exists()


def test_zero_weights_have_finite_scales(tmp_path: Path) -> None:
    """One element in a matrix of zeros: most blocks, rows and a whole tensor are zero."""
    lonely = torch.zeros(256, 256)
    lonely[0, 0] = 1
    weights = tmp_path / "w.safetensors"
    save_file({"a.weight": lonely, "b.weight": torch.zeros(256, 256)}, weights)
    for factory in ("nvfp4", "mxfp8", "current_scaling", "float8_block_scaling"):
        apply(str(weights), factory, tmp_path / factory, options=ONLY_WEIGHTS)
        report = verify(tmp_path / factory, str(weights))
        assert report.ok, report.problems
        assert [e.max_abs_err for e in report.errors] == [0.0, 0.0]


def test_static_layers_need_data(source: Path, tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    save_file({"a.weight": torch.randn(32, 64)}, weights)
    with pytest.raises(UsageError, match="holds weights without a model") as caught:
        apply(str(weights), "nvfp4", tmp_path / "out")
    assert "--weight-only" in caught.value.hint
    assert not [p for p in tmp_path.iterdir() if p != weights]


def test_calibration_data_that_is_not_there(samples: Path, tmp_path: Path) -> None:
    how = CalibrationOptions(data=tmp_path / "gone.txt")
    with pytest.raises(UsageError, match=r"gone\.txt cannot be read: No such file"):
        apply(str(samples / "mlp.py"), "nvfp4", tmp_path / "out", calibration=how)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("factory", ["nvfp4", "mxfp8", "current_scaling", "float8_block_scaling"])
def test_weights_are_quantized_without_torch(source: Path, tmp_path: Path, factory: str) -> None:
    code = (
        "import sys\n"
        "from qrole.checkpoint.apply import apply\n"
        "from qrole.checkpoint.job import ApplyOptions\n"
        "apply(*sys.argv[1:], options=ApplyOptions(weight_only=True))\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(source), factory, str(tmp_path / "out")]
    assert subprocess.run(command, check=False).returncode == 0
    assert verify(tmp_path / "out", str(source)).ok


def test_calibration_is_recorded_and_reproduced(samples: Path, tmp_path: Path) -> None:
    model = str(samples / "mlp.py")
    for name in ("a", "b"):
        apply(model, "nvfp4", tmp_path / name, calibration=CalibrationOptions())
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    record = json.loads((tmp_path / "a" / "qrole_manifest.json").read_text())["calibration"]
    assert record["data"] in ("example_inputs()", "calibration_data()")
    assert all(amax > 0 for amax in record["input_amax"].values())


def test_units_are_largest_first(source: Path) -> None:
    sizes = [unit.nbytes for unit in prepare(str(source), "mxfp8", ApplyOptions()).units]
    assert sizes == sorted(sizes, reverse=True)
