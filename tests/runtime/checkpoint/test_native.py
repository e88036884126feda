"""The layout native: bit for bit what each quantizer makes, checked, loaded, and resumed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import qrole
from qrole.checkpoint.apply import apply
from qrole.checkpoint.bill import bill
from qrole.checkpoint.constraints import OnShape
from qrole.checkpoint.job import ApplyOptions, prepare
from qrole.checkpoint.load import load
from qrole.checkpoint.manifest import MANIFEST
from qrole.checkpoint.native.descriptions import described, rebuilt
from qrole.checkpoint.native.quantizing import digest, raw_bytes
from qrole.checkpoint.native.weights import METADATA, seed_of
from qrole.checkpoint.schemes import Fp8Mode
from qrole.checkpoint.verify import verify
from qrole.errors import CheckpointError, ConfigError, UsageError
from qrole.loading import LoadedModel
from qrole.quantizers.reference import CurrentScalingQuantizerRef, NVFP4QuantizerRef
from tests.runtime.checkpoint.corruption import (
    edit_config,
    flip_byte,
    llama_like,
    tensors_of,
)

E4M3, E5M2 = qrole.DType.kFloat8E4M3, qrole.DType.kFloat8E5M2
E2M1 = qrole.DType.kFloat4E2M1
NATIVE = ApplyOptions(layout="native")
DOWN = "model.layers.0.mlp.down_proj"


def hybrid(source: str = "original") -> qrole.Quantizer:
    return qrole.HybridQuantizer(
        rowwise_quantizer=qrole.MXFP8Quantizer(E4M3),
        columnwise_quantizer=qrole.NVFP4Quantizer(with_rht=True, with_post_rht_amax=True),
        columnwise_source=source,
    )


def half_kept() -> qrole.Quantizer:
    return qrole.HybridQuantizer(
        rowwise_quantizer=qrole.NVFP4Quantizer(),
        columnwise_quantizer=qrole.IdentityQuantizer(dtype=torch.bfloat16),
    )


def delayed() -> qrole.Quantizer:
    return qrole.Float8Quantizer(torch.tensor(3.7), torch.zeros(()), E5M2)


def block(**options: Any) -> qrole.Quantizer:
    return qrole.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True, **options)


QUANTIZERS: dict[str, Callable[[], qrole.Quantizer]] = {
    "current": lambda: qrole.Float8CurrentScalingQuantizer(E4M3, "cpu", amax_epsilon=0.01),
    "current-e5m2": lambda: qrole.Float8CurrentScalingQuantizer(
        E5M2, "cpu", force_pow_2_scales=True
    ),
    "current-reduced": lambda: qrole.Float8CurrentScalingQuantizer(
        E4M3, "cpu", with_amax_reduction=True
    ),
    "delayed": delayed,
    "block-2d": block,
    "block-1d": lambda: block(block_scaling_dim=1, force_pow_2_scales=False),
    "mxfp8": lambda: qrole.MXFP8Quantizer(E4M3),
    "mxfp8-2d-e5m2": lambda: qrole.MXFP8Quantizer(E5M2, with_2d_quantization=True),
    "mxfp4": qrole.MXFP4Quantizer,
    "mxfp4-even": lambda: qrole.MXFP4Quantizer("even"),
    "nvfp4": qrole.NVFP4Quantizer,
    "nvfp4-2d": lambda: qrole.NVFP4Quantizer(with_2d_quantization=True),
    "nvfp4-rht-sr": lambda: qrole.NVFP4Quantizer(
        with_rht=True, with_post_rht_amax=True, stochastic_rounding=True
    ),
    "nvfp4-4over6": lambda: qrole.NVFP4Quantizer(
        nvfp4_use_4over6=True, nvfp4_e4m3_max=256, nvfp4_4over6_err_mode="MSE"
    ),
    "nvfp4-rows": lambda: qrole.NVFP4Quantizer(row_scaled_nvfp4=True),
    "identity": qrole.IdentityQuantizer,
    "identity-cast": lambda: qrole.IdentityQuantizer(dtype=torch.float16),
    "hybrid": hybrid,
    "hybrid-of-row": lambda: hybrid("rowwise_dequantized"),
    "hybrid-kept": half_kept,
    "current-reference": lambda: CurrentScalingQuantizerRef(torch.float8_e5m2, pow_2_scales=True),
    "nvfp4-reference": lambda: NVFP4QuantizerRef(E2M1, quant_tile_shape=(16, 16)),
    "nvfp4-reference-rht": lambda: NVFP4QuantizerRef(E2M1, with_rht=True),
}


def factory_of(make: Callable[[], qrole.Quantizer]) -> Callable[[Any], qrole.Quantizer]:
    def factory(role: Any) -> qrole.Quantizer:
        weight = role is not None and role.tensor_type == "weight"
        return make() if weight else qrole.IdentityQuantizer()

    return factory


def odd_model() -> LoadedModel:
    """Sizes that are multiples of no block."""
    torch.manual_seed(4)
    module = nn.Sequential(nn.Linear(70, 45), nn.GELU(), nn.Linear(45, 18, bias=False)).bfloat16()
    return LoadedModel("model.py", "python", module)


def made_of(quantizer: qrole.Quantizer, x: torch.Tensor, module: str) -> qrole.QuantizedTensor:
    """What the quantizer makes, without the layout's help."""
    quantizer.set_usage(rowwise=True, columnwise=True)
    seed = seed_of(quantizer, module)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return quantizer.quantize(x, generator=generator)


def assert_same(found: Any, wanted: qrole.QuantizedTensor) -> None:
    assert isinstance(found, qrole.QuantizedTensor)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    assert found.quantizer == wanted.quantizer
    for name in (
        "rowwise_data",
        "rowwise_scale_inv",
        "columnwise_data",
        "columnwise_scale_inv",
        "amax_rowwise",
        "amax_columnwise",
    ):
        one, other = getattr(found, name), getattr(wanted, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert (one.dtype, one.shape) == (other.dtype, other.shape), name
            assert (
                one.reshape(-1)
                .view(torch.uint8)
                .equal(other.contiguous().reshape(-1).view(torch.uint8))
            ), name
    assert found.dequantize().equal(wanted.dequantize())
    for_wgrad = found.dequantize(direction="columnwise")
    assert for_wgrad.equal(wanted.dequantize(direction="columnwise"))


@pytest.mark.parametrize("name", QUANTIZERS)
def test_every_quantizer_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    model, out = odd_model(), tmp_path / "out"
    apply(model, factory_of(QUANTIZERS[name]), out, options=NATIVE)
    report = verify(out, model)
    assert report.ok, report.problems
    assert report.layout == "native"
    assert report.unchanged == 1
    state = load(out, dequantize=False)
    assert model.module is not None
    for module in ("0", "2"):
        x = model.module.get_submodule(module).weight.detach()
        wanted = made_of(QUANTIZERS[name](), x, module)
        assert_same(state[f"{module}.weight"], wanted)
    assert torch.equal(load(out)["2.weight"], wanted.dequantize())


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_description_builds_the_quantizer_again(name: str) -> None:
    quantizer = QUANTIZERS[name]()
    description = json.loads(json.dumps(described(quantizer)))
    again = rebuilt(description)
    assert type(again) is type(quantizer)
    assert again == quantizer
    assert described(again) == described(quantizer)


def test_the_factorys_amax_history_is_left_alone(tmp_path: Path) -> None:
    amax = torch.zeros(())
    one = qrole.Float8Quantizer(torch.tensor(2.0), amax, E4M3)
    apply(odd_model(), factory_of(lambda: one), tmp_path / "out", options=NATIVE)
    assert float(amax) == 0


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_like(tmp_path_factory.mktemp("source") / "llama", tied=True, shards=2)


@pytest.mark.parametrize("factory", ["nvfp4", "mxfp8", "delayed_scaling"])
def test_a_llama_in_shards(factory: str, llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = apply(str(llama), factory, out, options=NATIVE)
    assert sum(report.schemes.values()) == 14
    assert (out / "config.json").read_bytes() == (llama / "config.json").read_bytes()
    assert (out / "tokenizer.json").is_file()
    checked = verify(out, str(llama))
    assert checked.ok, checked.problems
    assert all(v.reasons == ("does not read the layout native",) for v in checked.verdicts)
    assert checked.errors
    assert all(error.sqnr_db > 10 for error in checked.errors)
    source: dict[str, torch.Tensor] = {}
    for path in llama.glob("*.safetensors"):
        source |= load_file(path)
    state = load(out, dequantize=False)
    assert state.keys() == source.keys()
    for name, value in state.items():
        if isinstance(value, qrole.QuantizedTensor):
            module = name.removesuffix(".weight")
            assert_same(value, made_of(value.quantizer.copy(), source[name], module))
        else:
            assert value.equal(source[name])


def test_bytes_do_not_depend_on_the_run(llama: Path, tmp_path: Path) -> None:
    factory = factory_of(QUANTIZERS["nvfp4-rht-sr"])
    for name, workers in (("one", 1), ("two", 3)):
        apply(str(llama), factory, tmp_path / name, options=NATIVE, workers=workers)
    for path in sorted((tmp_path / "one").iterdir()):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_an_interrupted_run_goes_on(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = factory_of(QUANTIZERS["nvfp4-rht-sr"])
    apply(str(llama), factory, tmp_path / "whole", options=NATIVE)
    done = 0

    def stop(_done: int, _total: int) -> None:
        nonlocal done
        done += 1
        if done == 5:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        apply(str(llama), factory, tmp_path / "out", options=NATIVE, on_progress=stop)
    assert not (tmp_path / "out").exists()
    report = apply(str(llama), factory, tmp_path / "out", options=NATIVE)
    assert report.reused_bytes > 0
    for path in sorted((tmp_path / "whole").iterdir()):
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes(), path.name


def test_the_files_alone_tell_who_quantized(llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    apply(str(llama), factory_of(QUANTIZERS["nvfp4-rht-sr"]), out, options=NATIVE)
    records: dict[str, Any] = {}
    for path in out.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            records |= json.loads((file.metadata() or {}).get(METADATA, "{}"))
    manifest = json.loads((out / MANIFEST).read_text())
    assert records.keys() == manifest["layers"].keys()
    record = records[DOWN]
    assert record["quantizer"]["stochastic_rounding"] is True
    assert record["seed"] == manifest["layers"][DOWN]["native"]["seed"] is not None
    assert manifest["layout"] == "native"


@pytest.fixture(scope="module")
def written(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    single = llama_like(tmp_path_factory.mktemp("single") / "llama", tied=True)
    out = tmp_path_factory.mktemp("written") / "out"
    apply(str(single), factory_of(qrole.NVFP4Quantizer), out, options=NATIVE)
    return out


def edit_manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        content = json.loads((directory / MANIFEST).read_text())
        change(content)
        (directory / MANIFEST).write_text(json.dumps(content))

    return spoil


def edit(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    """Rewrites the weights after `change`, with the file's metadata."""

    def spoil(directory: Path) -> None:
        path = directory / "model.safetensors"
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        tensors = {name: value.clone() for name, value in load_file(path).items()}
        change(tensors)
        save_file(tensors, path, metadata=metadata)

    return spoil


def set_first(part: str, value: float) -> Callable[[Path], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{DOWN}.weight.{part}"].view(-1)[0] = value

    return edit(change)


def swap(part: str) -> Callable[[Path], None]:
    name = f"{DOWN}.weight.{part}"
    return edit(lambda tensors: tensors.update({name: (tensors[name] >> 4) | (tensors[name] << 4)}))


CORRUPTIONS: dict[str, tuple[Callable[[Path], None], str]] = {
    "byte of rowwise codes": (flip_byte(f"{DOWN}.weight.rowwise_data"), "changed-bytes"),
    "byte of columnwise codes": (flip_byte(f"{DOWN}.weight.columnwise_data"), "changed-bytes"),
    "byte of rowwise scales": (flip_byte(f"{DOWN}.weight.rowwise_scale_inv"), "changed-bytes"),
    "swapped nibbles": (swap("columnwise_data"), "changed-bytes"),
    "scale of NaN": (set_first("columnwise_scale_inv", 0x7F), "bad-scale"),
    "negative amax": (set_first("amax_rowwise", -1.0), "bad-scale"),
    "infinite amax": (set_first("amax_columnwise", float("inf")), "bad-scale"),
    "part lost": (
        edit(lambda tensors: tensors.pop(f"{DOWN}.weight.columnwise_scale_inv")),
        "missing-part",
    ),
    "part of another shape": (
        edit(
            lambda tensors: tensors.update(
                {f"{DOWN}.weight.rowwise_data": tensors[f"{DOWN}.weight.rowwise_data"][:-1].clone()}
            )
        ),
        "wrong-part",
    ),
    "stray part": (
        edit(lambda tensors: tensors.update({"x.weight.rowwise_data": torch.zeros(2).byte()})),
        "stray-part",
    ),
    "another quantizer's option": (
        edit_manifest(
            lambda content: content["layers"][DOWN]["native"]["quantizer"].update(
                nvfp4_e4m3_max=256
            )
        ),
        "manifest-differs",
    ),
    "layer not in the manifest": (
        edit_manifest(lambda content: content["layers"].pop(DOWN)),
        "manifest-differs",
    ),
    "a declaration for engines": (
        edit_config(lambda config: config.update(quantization_config={"quant_method": "fp8"})),
        "wrong-config",
    ),
    "kept tensor lost": (
        edit(lambda tensors: tensors.pop("model.embed_tokens.weight")),
        "lost-tensor",
    ),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_verify_finds_what_was_planted(name: str, written: Path, tmp_path: Path) -> None:
    spoil, kind = CORRUPTIONS[name]
    spoiled = shutil.copytree(written, tmp_path / "spoiled")
    assert verify(spoiled).ok
    spoil(spoiled)
    found = {problem.kind for problem in verify(spoiled).problems}
    assert kind in found


@pytest.mark.parametrize("name", ["part lost", "part of another shape", "stray part"])
def test_load_refuses_what_is_not_described(name: str, written: Path, tmp_path: Path) -> None:
    spoiled = shutil.copytree(written, tmp_path / "spoiled")
    CORRUPTIONS[name][0](spoiled)
    with pytest.raises(CheckpointError, match=CORRUPTIONS[name][1]):
        load(spoiled, dequantize=False)


def test_a_source_shows_what_a_forged_digest_hides(tmp_path: Path) -> None:
    source, out = llama_like(tmp_path / "llama", tied=True), tmp_path / "out"
    apply(str(source), "mxfp8", out, options=NATIVE)
    flip_byte(f"{DOWN}.weight.columnwise_data")(out)
    entry = f"{DOWN}.weight."
    parts = {n.removeprefix(entry): t for n, t in tensors_of(out).items() if n.startswith(entry)}
    forged = digest((name, raw_bytes(tensor)) for name, tensor in parts.items())
    edit_manifest(lambda content: content["layers"][DOWN]["native"].update(sha256=forged))(out)
    assert verify(out).ok
    problems = verify(out, str(source)).problems
    assert [(p.kind, p.where) for p in problems] == [
        ("wrong-values", f"{DOWN}.weight.columnwise_data")
    ]


def test_another_source_is_told_apart(written: Path, tmp_path: Path) -> None:
    other = llama_like(tmp_path / "llama", tied=True, seed=1)
    kinds = {problem.kind for problem in verify(written, str(other)).problems}
    assert kinds == {"wrong-values", "changed-tensor"}


def test_without_its_descriptions_it_is_refused(written: Path, tmp_path: Path) -> None:
    spoiled = shutil.copytree(written, tmp_path / "spoiled")
    path = spoiled / "model.safetensors"
    save_file(dict(load_file(path)), path)
    assert {problem.kind for problem in verify(spoiled).problems} >= {"manifest-differs"}
    with pytest.raises(CheckpointError, match="not what its metadata describe"):
        load(spoiled)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("layers"),
        lambda content: content["layers"][DOWN].pop("native"),
        lambda content: content["layers"][DOWN]["native"].pop("sha256"),
        lambda content: content["layers"][DOWN].update(tensor=None),
    ],
    ids=["layers", "native", "sha256", "tensor"],
)
def test_a_malformed_manifest_is_refused(
    change: Callable[[dict[str, Any]], object], written: Path, tmp_path: Path
) -> None:
    spoiled = shutil.copytree(written, tmp_path / "spoiled")
    edit_manifest(change)(spoiled)
    with pytest.raises(CheckpointError, match="is malformed"):
        verify(spoiled)
    with pytest.raises(CheckpointError, match="is malformed"):
        load(spoiled)


def test_a_description_of_nothing_is_refused(written: Path, tmp_path: Path) -> None:
    spoiled = shutil.copytree(written, tmp_path / "spoiled")
    path = spoiled / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"NVFP4Quantizer", b"NoSuchQuantize", 1))
    with pytest.raises(CheckpointError, match="NoSuchQuantize"):
        load(spoiled)
    with pytest.raises(CheckpointError, match="NoSuchQuantize"):
        verify(spoiled)


def test_a_module_is_filled_with_what_the_codes_stand_for(tmp_path: Path) -> None:
    model, out = odd_model(), tmp_path / "out"
    apply(model, factory_of(hybrid), out, options=NATIVE)
    empty = nn.Sequential(nn.Linear(70, 45), nn.GELU(), nn.Linear(45, 18, bias=False))
    filled = load(out, into=empty)
    codes = load(out, dequantize=False)
    assert filled[0].weight.equal(codes["0.weight"].dequantize(torch.float32))
    assert filled[0].bias.equal(codes["0.bias"].float())


@pytest.mark.parametrize(
    "options",
    [
        {"engines": ("vllm",)},
        {"fp8": Fp8Mode.CHANNEL},
        {"weight_only": True},
        {"dtype": "bfloat16"},
        {"on_shape": OnShape.FALLBACK},
    ],
    ids=str,
)
def test_options_about_engines_are_refused(
    options: dict[str, Any], llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="with the layout native"):
        apply(str(llama), "nvfp4", tmp_path / "out", options=replace(NATIVE, **options))
    assert not list(tmp_path.iterdir())


class Mine(qrole.Quantizer):
    """A user's own class."""

    def __init__(self) -> None:
        super().__init__(rowwise=True, columnwise=True)


def test_what_cannot_be_built_again_is_refused(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"slot .*of the class Mine"):
        apply(str(llama), factory_of(Mine), tmp_path / "out", options=NATIVE)
    clash = factory_of(lambda: qrole.NVFP4Quantizer(with_rht=True))
    with pytest.raises(ConfigError, match=r"slot .*with_post_rht_amax=False"):
        apply(str(llama), clash, tmp_path / "out", options=NATIVE)


def test_a_config_that_declares_a_quantization_is_refused(tmp_path: Path) -> None:
    source = llama_like(tmp_path / "llama", tied=True)
    edit_config(lambda config: config.update(quantization_config={"x": 1}))(source)
    with pytest.raises(UsageError, match="declares a quantization"):
        apply(str(source), "nvfp4", tmp_path / "out", options=NATIVE)


def test_a_weight_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    model = odd_model()
    assert model.module is not None
    with torch.no_grad():
        model.module[0].weight[1, 2] = float("nan")
    with pytest.raises(CheckpointError, match="NaN"):
        apply(model, "mxfp8", tmp_path / "out", options=NATIVE)
    assert not (tmp_path / "out").exists()


def test_the_bill_counts_both_directions(llama: Path, tmp_path: Path) -> None:
    job = prepare(str(llama), factory_of(qrole.NVFP4Quantizer), NATIVE)
    found = bill(job)
    report = apply(str(llama), factory_of(qrole.NVFP4Quantizer), tmp_path / "out", options=NATIVE)
    headers = sum(len(shard.header) for shard in job.shards)
    assert found.output_bytes + headers == report.output_bytes
    assert 9 <= found.quantized_bits < 9.2
    assert found.seconds > 0
