"""Loading what was written: bit for bit the quantizer's data, in every layout and scheme."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import qrole
from qrole.checkpoint.apply import apply
from qrole.checkpoint.constraints import OnShape
from qrole.checkpoint.inputs import CalibrationOptions
from qrole.checkpoint.job import ApplyOptions
from qrole.checkpoint.load import load
from qrole.checkpoint.manifest import MANIFEST
from qrole.checkpoint.schemes import Fp8Mode
from qrole.checkpoint.stored import open_stored
from qrole.checkpoint.stored_tensor import Float8ChannelQuantizer
from qrole.checkpoint.verification.decoding import decode
from qrole.errors import CheckpointError, NothingMatchedError, UsageError
from qrole.loading import LoadedModel, load_model
from tests.runtime.checkpoint.corruption import (
    edit,
    edit_config,
    edit_quantization,
    edit_tensor,
    tensors_of,
)

E4M3 = qrole.DType.kFloat8E4M3
WIDTH = 128


class Decoder(nn.Module):
    """Two fused groups and one layer alone; what engines join has one amax, set by hand."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embed = nn.Embedding(48, WIDTH)
        self.attn = nn.ModuleDict({n: nn.Linear(WIDTH, WIDTH) for n in ("q_proj", "k_proj")})
        self.mlp = nn.ModuleDict(
            {n: nn.Linear(WIDTH, 2 * WIDTH, bias=False) for n in ("gate_proj", "up_proj")}
        )
        self.mlp["down_proj"] = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("positions", torch.arange(7))
        self.head = nn.Linear(WIDTH, 48, bias=False)
        self.head.weight = self.embed.weight
        self.to(dtype)
        with torch.no_grad():
            for linear in (*self.attn.values(), *self.mlp.values()):
                linear.weight[3, 5] = 0.25

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        x_BTD = self.embed(tokens_BT)
        x_BTD = x_BTD + self.attn["q_proj"](x_BTD) * self.attn["k_proj"](x_BTD)
        hidden = self.mlp["gate_proj"](x_BTD).sigmoid() * self.mlp["up_proj"](x_BTD)
        return self.head(self.norm(x_BTD + self.mlp["down_proj"](hidden)))


LINEARS = ("attn.q_proj", "attn.k_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
TOKENS = torch.arange(12).reshape(2, 6)


def fp8() -> Any:
    return qrole.Float8CurrentScalingQuantizer(E4M3, "cpu")


def fp8_pow2() -> Any:
    return qrole.Float8CurrentScalingQuantizer(E4M3, "cpu", force_pow_2_scales=True)


def mxfp8(square: bool = False) -> Any:
    return qrole.MXFP8Quantizer(E4M3, with_2d_quantization=square)


def blocks(pow2: bool = True) -> Any:
    return qrole.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True, force_pow_2_scales=pow2)


def nvfp4(**options: Any) -> Any:
    return qrole.NVFP4Quantizer(**options)


STATIC, CHANNEL, A16 = {}, {"fp8": Fp8Mode.CHANNEL}, {"weight_only": True}
#: Layout, options, the factory's quantizer, and the one that the codes must be equal to.
CASES: dict[str, tuple[str, dict[str, Any], Callable[[], Any], Callable[[], Any] | None]] = {
    "ct fp8_tensor": ("compressed-tensors", STATIC, fp8, None),
    "ct fp8_tensor pow2": ("compressed-tensors", STATIC, fp8_pow2, None),
    "ct fp8_tensor_dynamic": ("compressed-tensors", {"fp8": Fp8Mode.DYNAMIC}, fp8, None),
    "ct fp8_tensor_a16": ("compressed-tensors", A16, fp8, None),
    "ct fp8_channel": ("compressed-tensors", CHANNEL, fp8, Float8ChannelQuantizer),
    "ct fp8_channel own": ("compressed-tensors", A16, Float8ChannelQuantizer, None),
    "ct fp8_block": ("compressed-tensors", STATIC, blocks, None),
    "ct fp8_block fp32": ("compressed-tensors", STATIC, lambda: blocks(False), None),
    "ct mxfp8": ("compressed-tensors", STATIC, mxfp8, None),
    "ct mxfp8_a16 2D": ("compressed-tensors", A16, lambda: mxfp8(True), None),
    "ct mxfp4": ("compressed-tensors", STATIC, qrole.MXFP4Quantizer, None),
    "ct mxfp4_a16 floor": (
        "compressed-tensors",
        A16,
        lambda: qrole.MXFP4Quantizer("floor"),
        None,
    ),
    "ct nvfp4": ("compressed-tensors", STATIC, nvfp4, None),
    "ct nvfp4_a16 2D": (
        "compressed-tensors",
        A16,
        lambda: nvfp4(with_2d_quantization=True),
        None,
    ),
    "ct nvfp4_a16 256": ("compressed-tensors", A16, lambda: nvfp4(nvfp4_e4m3_max=256), None),
    "ct nvfp4_a16 4over6": (
        "compressed-tensors",
        A16,
        lambda: nvfp4(nvfp4_use_4over6=True, nvfp4_4over6_err_mode="MSE"),
        None,
    ),
    "modelopt FP8": ("modelopt", STATIC, fp8, None),
    "modelopt FP8_PER_CHANNEL_PER_TOKEN": ("modelopt", CHANNEL, fp8, Float8ChannelQuantizer),
    "modelopt FP8_PB_WO": ("modelopt", STATIC, blocks, None),
    "modelopt NVFP4": ("modelopt", STATIC, nvfp4, None),
    "modelopt W4A16_NVFP4": ("modelopt", A16, nvfp4, None),
    "modelopt MXFP8": ("modelopt", STATIC, mxfp8, None),
    "fp8-block": ("fp8-block", STATIC, blocks, None),
}


def written(
    out: Path, factory: Any, module: nn.Module | None = None, **options: Any
) -> tuple[Path, nn.Module]:
    model = Decoder() if module is None else module
    loaded = LoadedModel(
        type(model).__name__, "python", module=model, example_inputs=lambda: (TOKENS,)
    )
    apply(loaded, factory, out, options=ApplyOptions(**options))
    return out, model


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, nn.Module, Any]:
    """A written checkpoint, its source, and the quantizer that made its weights."""
    layout, options, make, stored_as = CASES[request.param]
    out, model = written(tmp_path / "out", lambda role: make(), layout=layout, **options)
    return out, model, (stored_as or make)()


def test_the_codes_are_the_quantizer_s_bit_for_bit(
    case: tuple[Path, nn.Module, qrole.Quantizer],
) -> None:
    out, model, quantizer = case
    state = load(out, dequantize=False)
    for name in LINEARS:
        found = state[f"{name}.weight"]
        assert isinstance(found, qrole.QuantizedTensor)
        wanted = quantizer.quantize(model.get_submodule(name).weight)
        assert found.quantizer == quantizer
        assert found.dtype == torch.bfloat16
        for part in ("rowwise_data", "rowwise_scale_inv"):
            assert torch.equal(getattr(found, part), getattr(wanted, part)), (name, part)
        if wanted.amax_rowwise is not None:
            assert found.amax_rowwise == wanted.amax_rowwise, name
        assert torch.equal(found.dequantize(torch.float32), wanted.dequantize(torch.float32)), name


def test_decoded_weights_are_what_verify_reads(
    case: tuple[Path, nn.Module, qrole.Quantizer],
) -> None:
    out, _, quantizer = case
    state = load(out, dtype=torch.float32)
    assert isinstance(state, dict)
    stored = open_stored(out)
    for name in LINEARS:
        layer = stored.weights[name].layer
        wanted, _ = decode(layer, stored.reader, 0, layer.rows)
        if isinstance(quantizer, qrole.NVFP4Quantizer):  # three fp32 factors in another order
            torch.testing.assert_close(state[f"{name}.weight"], wanted, rtol=2**-22, atol=0)
        else:
            assert torch.equal(state[f"{name}.weight"], wanted), name


def test_every_tensor_of_the_model_comes_back(
    case: tuple[Path, nn.Module, qrole.Quantizer],
) -> None:
    out, model, _ = case
    state, source = load(out), model.state_dict()
    assert isinstance(state, dict)
    assert {n: (t.shape, t.dtype) for n, t in state.items()} == {
        n: (t.shape, t.dtype) for n, t in source.items()
    }
    for name in source.keys() - {f"{linear}.weight" for linear in LINEARS}:
        assert torch.equal(state[name], source[name]), name
    assert state["head.weight"] is state["embed.weight"]


def test_static_inputs_keep_their_numbers(tmp_path: Path) -> None:
    out, _ = written(tmp_path / "out", lambda role: nvfp4())
    codes = load(out, dequantize=False)
    stored = tensors_of(out)
    names = [f"{name}.input_global_scale" for name in LINEARS]
    assert [codes[n] for n in names] == [stored[n] for n in names]
    quantized = {n for n, value in codes.items() if isinstance(value, qrole.QuantizedTensor)}
    assert codes.keys() - quantized == {
        *names,
        *(n for n in stored if n.rpartition(".")[2] not in PARTS),
    }


PARTS = ("weight_packed", "weight_scale", "weight_global_scale")


@pytest.mark.parametrize("layout", ["compressed-tensors", "modelopt"])
@pytest.mark.parametrize("make", [fp8, blocks, mxfp8, nvfp4], ids=lambda make: make.__name__)
def test_without_a_manifest_the_tensors_alone_are_read(
    tmp_path: Path, layout: str, make: Callable[[], Any]
) -> None:
    out, _ = written(tmp_path / "out", lambda role: make(), layout=layout)
    before = load(out, dtype=torch.float32)
    (out / MANIFEST).unlink()
    after = load(out, dtype=torch.float32)
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert before.keys() - after.keys() == {"head.weight"}
    for name, value in after.items():
        torch.testing.assert_close(value, before[name], rtol=2**-22, atol=0)


def test_a_mixed_checkpoint_gives_each_layer_its_own_format(tmp_path: Path) -> None:
    def mixed(role: qrole.QuantizerRole | None) -> Any:
        name = role.name if role else ""
        return fp8() if "attn" in name else mxfp8() if "down" in name else nvfp4()

    out, _ = written(tmp_path / "out", mixed)
    labels = {
        name: value.quantizer.label
        for name, value in load(out, dequantize=False).items()
        if isinstance(value, qrole.QuantizedTensor)
    }
    assert labels == {
        "attn.q_proj.weight": "FP8 current E4M3",
        "attn.k_proj.weight": "FP8 current E4M3",
        "mlp.gate_proj.weight": "NVFP4",
        "mlp.up_proj.weight": "NVFP4",
        "mlp.down_proj.weight": "MXFP8 E4M3",
    }


def test_dtype_is_that_of_everything_floating(tmp_path: Path) -> None:
    out, _ = written(tmp_path / "out", "mxfp8")
    state = load(out, dtype=torch.float16)
    assert isinstance(state, dict)
    assert {t.dtype for n, t in state.items() if n != "positions"} == {torch.float16}
    assert state["positions"].dtype == torch.int64
    codes = load(out, dequantize=False, dtype=torch.float16)
    assert codes["mlp.down_proj.weight"].dtype == torch.float16


class Everything(nn.Module):
    """Only weights that are quantized: no other tensor tells a dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH, bias=False)


def test_where_nothing_tells_the_dtype_it_is_fp32(tmp_path: Path) -> None:
    out, _ = written(tmp_path / "out", "mxfp8", Everything().half(), weight_only=True)
    state = load(out)
    assert isinstance(state, dict)
    assert state["fc.weight"].dtype == torch.float32


def test_a_module_is_filled_in_its_own_dtypes(tmp_path: Path) -> None:
    out, source = written(tmp_path / "out", "mxfp8")
    target = Decoder(torch.float32)
    target.norm.double()
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.zero_()
    assert load(out, into=target) is target
    assert target.norm.weight.dtype == torch.float64
    assert target.head.weight is target.embed.weight
    with torch.no_grad():
        for name in LINEARS:
            weight = source.get_submodule(name).weight
            weight.copy_(mxfp8().quantize(weight).dequantize())
            exact = mxfp8().quantize(source.get_submodule(name).weight).dequantize(torch.float32)
            assert torch.equal(target.get_submodule(name).weight, exact)
    assert torch.equal(target.embed.weight.bfloat16(), source.embed.weight)


@pytest.mark.parametrize("sample", ["llama_tiny", "mlp", "moe_tiny", "vit_tiny"])
def test_sample_models_come_back(samples: Path, tmp_path: Path, sample: str) -> None:
    spec = str(samples / f"{sample}.py")
    out = tmp_path / "out"
    apply(spec, "mxfp8", out, options=ApplyOptions(weight_only=True))
    fresh, source = load_model(spec, weights=True), load_model(spec, weights=True)
    assert fresh.module is not None
    assert source.module is not None
    assert fresh.example_inputs is not None
    filled = load(out, into=fresh.module)
    inputs = fresh.example_inputs()
    with torch.no_grad():
        found, wanted = filled(*inputs), source.module(*inputs)
    error = float((found - wanted).norm() / wanted.norm())
    assert 0 < error < 0.2


def test_qrole_s_own_modules_come_back(tmp_path: Path) -> None:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return qrole.TransformerLayer(WIDTH, 2 * WIDTH, 4, params_dtype=torch.float32).eval()

    out, source = written(tmp_path / "out", "mxfp8", build(0), weight_only=True)
    filled = load(out, into=build(1))
    x = torch.randn(5, 2, WIDTH)
    with torch.no_grad():
        error = float((filled(x) - source(x)).norm() / source(x).norm())
    assert 0 < error < 0.1


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a part is missing": (
        edit(lambda tensors: tensors.pop("mlp.down_proj.weight_scale")),
        r"mlp\.down_proj\.weight_scale: is not there",
    ),
    "a part of another shape": (
        edit_tensor("mlp.down_proj.weight_scale", lambda scale: scale.t()),
        r"weight_scale: is F8_E4M3 \[16, 128\], not F8_E4M3 \[128, 16\]",
    ),
    "codes that nothing declares": (
        edit_quantization(lambda q: q["config_groups"]["group_0"].update(targets=["attn.q_proj"])),
        "holds codes, and no group of the config targets it",
    ),
    "a scale that belongs to nothing": (
        edit(lambda tensors: tensors.update({"head.weight_scale": torch.ones(3)})),
        r"head\.weight_scale: belongs to no layer",
    ),
    "another global scale": (
        edit_tensor("mlp.down_proj.weight_global_scale", lambda scale: scale * 2),
        r"mlp\.down_proj\.weight_global_scale is .* tells of an amax of 0\.25",
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    spoil, message = SPOILED[name]
    out, _ = written(tmp_path / "out", lambda role: nvfp4(), weight_only=True)
    spoil(out)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(out)
    assert caught.value.expected
    assert "qrole verify" in caught.value.hint


def test_a_manifest_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    one, _ = written(tmp_path / "one", "mxfp8")
    other, _ = written(tmp_path / "other", "mxfp8", Everything())
    shutil.copy(other / MANIFEST, one / MANIFEST)
    with pytest.raises(CheckpointError, match=r"differ in 6 layers, attn\.k_proj first"):
        load(one)


def test_a_malformed_manifest_is_refused(tmp_path: Path) -> None:
    out, _ = written(tmp_path / "out", "mxfp8")
    record = json.loads((out / MANIFEST).read_text())
    del record["layers"]["mlp.down_proj"]["format"]
    (out / MANIFEST).write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"manifest\.json is malformed: KeyError 'format'"):
        load(out)


def test_a_kept_tensor_that_is_gone_is_missed(tmp_path: Path) -> None:
    out, _ = written(tmp_path / "out", "mxfp8")
    edit(lambda tensors: tensors.pop("embed.weight"))(out)
    with pytest.raises(CheckpointError, match=r"embed\.weight: is not there; qrole_manifest"):
        load(out)


class Wider(Decoder):
    """Other tensors than the checkpoint has."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH // 2)
        self.gate = nn.Linear(3, 3)
        del self.positions


def test_a_module_that_does_not_fit_is_left_as_it_was(tmp_path: Path) -> None:
    out, _ = written(tmp_path / "out", "mxfp8")
    target = Wider()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        load(out, into=target)
    text = str(caught.value)
    assert f"{out} has nothing for gate.weight, gate.bias" in text
    assert "Wider has no place for positions" in text
    assert "norm.weight [128] for [64]" in text
    assert "dequantize=False" in caught.value.hint
    assert all(torch.equal(target.state_dict()[n], before[n]) for n in before)


def test_arguments_that_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="into and dtype were both given"):
        load(tmp_path, into=Everything(), dtype=torch.float32)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="into and dequantize=False were both given"):
        load(tmp_path, into=Everything(), dequantize=False)  # type: ignore[call-overload]
    with torch.device("meta"):
        empty = Everything()
    with pytest.raises(UsageError, match="Everything has tensors on the meta device"):
        load(tmp_path, into=empty)


def test_what_is_no_quantized_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere is no directory"):
        load(tmp_path / "nowhere")
    save_file({"weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(NothingMatchedError, match="declares no quantized layer"):
        load(tmp_path)


def test_the_weights_are_mapped_and_may_be_changed(tmp_path: Path) -> None:
    out, _ = written(tmp_path / "out", "mxfp8")
    before = load_file(out / "model.safetensors")["mlp.down_proj.weight"]
    codes = load(out, dequantize=False)["mlp.down_proj.weight"]
    assert isinstance(codes, qrole.QuantizedTensor)
    assert codes.rowwise_data is not None
    codes.rowwise_data.zero_()
    again = load_file(out / "model.safetensors")["mlp.down_proj.weight"]
    assert torch.equal(again.view(torch.uint8), before.view(torch.uint8))


def test_a_channel_quantizer_multiplies_with_fp8(tmp_path: Path) -> None:
    from qrole.gemm import fprop

    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(4, 64, generator=draw), torch.randn(8, 64, generator=draw)
    quantizer = Float8ChannelQuantizer()
    made, whole = quantizer(w), fp8()(x)
    product = fprop(whole, made)
    exact = whole.dequantize() @ made.dequantize().t()
    torch.testing.assert_close(product, exact, rtol=1e-5, atol=1e-5)
    assert quantizer.label == "FP8 channel E4M3"
    turned = made.dequantize(direction="columnwise")
    assert torch.equal(turned, quantizer(w.t().contiguous()).dequantize().t())


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.runtime.checkpoint.acceptance import models

    base = tmp_path_factory.mktemp("models")
    for name in ("llama", "tied", "qwen3moe"):
        models.write(name, base / name, max_shard_size="300KB")
    return base


HUGGINGFACE = [
    ("llama", nvfp4, "compressed-tensors"),
    ("llama", blocks, "fp8-block"),
    ("llama", mxfp8, "modelopt"),
    ("tied", fp8, "modelopt"),
    ("qwen3moe", nvfp4, "compressed-tensors"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "make", "layout"), HUGGINGFACE)
def test_a_model_of_transformers(
    directories: Path, tmp_path: Path, model: str, make: Callable[[], Any], layout: str
) -> None:
    source, out = directories / model, tmp_path / "out"
    (source / "generation_config.json").write_text('{"max_new_tokens": 7}')
    apply(
        str(source),
        lambda role: make(),
        out,
        options=ApplyOptions(layout=layout, on_shape=OnShape.FALLBACK),
        calibration=CalibrationOptions(data=directories / f"{model}-ids.safetensors"),
    )
    found = load(out)
    assert isinstance(found, nn.Module)
    assert not found.training
    assert {p.dtype for p in found.parameters()} == {torch.bfloat16}
    assert found.generation_config.max_new_tokens == 7
    reference = load_model(str(source), weights=True).module
    assert reference is not None
    _decode_in_place(reference, open_stored(out))
    ids = {"input_ids": torch.arange(24).reshape(2, 12)}
    with torch.no_grad():
        assert torch.equal(found(**ids).logits, reference(**ids).logits)
    assert load(out, dtype=torch.float32).dtype == torch.float32  # type: ignore[union-attr]


@pytest.mark.slow
def test_tensors_that_transformers_has_no_place_for(tmp_path: Path) -> None:
    from tests.runtime.checkpoint.acceptance import models

    source, out = models.write("llama", tmp_path / "source"), tmp_path / "out"
    extra = edit(lambda tensors: tensors.update({"model.mtp.norm.weight": torch.ones(3)}))
    extra(source)
    apply(str(source), "mxfp8", out)
    with pytest.warns(UserWarning, match="LlamaForCausalLM has no place for 1 tensors") as caught:
        assert isinstance(load(out), nn.Module)
    assert caught[0].filename == __file__
    edit_config(lambda config: config.update(num_hidden_layers=1))(out)
    with pytest.raises(
        CheckpointError, match=r"LlamaForCausalLM has no place for model\.layers\.1"
    ):
        load(out)
    edit_config(lambda config: config.update(num_hidden_layers=2))(out)
    edit(lambda tensors: tensors.pop("model.norm.weight"))(out)
    with pytest.raises(CheckpointError, match=r"lacks 1 weights of LlamaForCausalLM, 'model\.norm"):
        load(out)


def _decode_in_place(model: nn.Module, stored: Any) -> None:
    """Writes verify's decode of every weight into the model, experts into their halves."""
    with torch.no_grad():
        for name, weight in stored.weights.items():
            values = stored.quantized(name, torch.bfloat16).dequantize()
            exact, _ = decode(weight.layer, stored.reader, 0, weight.layer.rows)
            torch.testing.assert_close(values, exact.bfloat16(), rtol=2**-7, atol=0)
            if ".experts." not in name:
                model.get_submodule(name).weight.copy_(values)
                continue
            parent, number, last = name.rsplit(".", 2)
            experts = model.get_submodule(parent)
            if last == "down_proj":
                experts.down_proj[int(number)].copy_(values)
            else:
                half = values.shape[0]
                first = half if last == "up_proj" else 0
                experts.gate_up_proj[int(number), first : first + half].copy_(values)
