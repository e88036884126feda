"""Whole comparisons of small models: values, what-if, training, determinism, bad numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from qrole.comparing import DataOptions, compare
from qrole.comparing.meter import Meter
from qrole.dtypes import DType
from qrole.errors import NothingMatchedError, UnknownNameError, UsageError
from qrole.execute import Layer
from qrole.loading import LoadedModel, load_model
from qrole.quantizers import IdentityQuantizer, MXFP8Quantizer, NVFP4Quantizer
from qrole.roles import Gemm


def _loaded(module: nn.Module, *inputs: torch.Tensor) -> LoadedModel:
    return LoadedModel("model", "python", module=module, example_inputs=lambda: inputs)


def _randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _weight_only(role):  # type: ignore[no-untyped-def]
    return NVFP4Quantizer() if role.tensor_type == "weight" else IdentityQuantizer()


def test_one_layer_by_hand() -> None:
    """Every number of a weight-only plan of one layer follows from the dequantized weight."""
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 32, bias=False), _randn(48, 64, seed=1)
    report = compare(_loaded(layer, x), _weight_only)
    (found,) = report.candidates
    w = layer.weight.detach()
    error = NVFP4Quantizer()(w).dequantize() - w
    slot = next(s for s in found.slots if s.usage == "rowwise")
    assert (slot.operand, slot.numel) == ("weight", w.numel())
    assert slot.cur_amax == w.abs().max().item()
    assert slot.mse == pytest.approx(error.square().mean().item(), rel=1e-4)
    assert slot.max_abs_err == pytest.approx(error.abs().max().item(), rel=1e-5)
    assert slot.sqnr_db == pytest.approx(
        20 * math.log10((w.norm() / error.norm()).item()), abs=1e-3
    )
    zeros = int((NVFP4Quantizer()(w).dequantize() == 0).sum())
    assert slot.underflows == pytest.approx(100.0 * zeros / w.numel())
    assert slot.dynamic_range == pytest.approx(math.log2(w.abs().max() / w.abs().min()), abs=1e-4)
    y, noise = x @ w.t(), x @ error.t()
    rel_err = (noise.norm() / y.norm()).item()
    (gemm,), (out,) = [g for g in found.gemms if g.gemm == "fprop"], found.layers
    assert gemm.rel_err == pytest.approx(rel_err, rel=1e-4)
    assert gemm.max_abs_err == pytest.approx(noise.abs().max().item(), rel=1e-3)
    assert out.rel_err == found.model.rel_err == pytest.approx(rel_err, rel=1e-4)


def test_long_results_are_projected() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(512, 384, bias=True), torch.randn(1000, 512)
    x[7] *= 100.0
    (found,) = compare(_loaded(layer, x), "mxfp8").candidates
    fprop = next(gemm for gemm in found.gemms if gemm.gemm == "fprop")
    w, bias = layer.weight.detach(), layer.bias.detach()
    quantize = MXFP8Quantizer(DType.kFloat8E4M3)
    exact = x @ w.t() + bias
    error = quantize(x).dequantize() @ quantize(w).dequantize().t() + bias - exact
    assert fprop.coverage == 64 / 1000
    assert fprop.rel_err == pytest.approx((error.norm() / exact.norm()).item(), rel=0.02)
    assert fprop.max_abs_err == pytest.approx(error.abs().max().item(), rel=1e-3)
    (layer_report,) = found.layers
    assert layer_report.rel_err == pytest.approx(fprop.rel_err, rel=0.02)


def test_projections_of_bf16_are_not_rounded_to_it() -> None:
    layer, meter = Layer("m", "", {}, 1, ("m.weight",)), Meter()
    left, right = (_randn(*shape, seed=1).bfloat16() for shape in ((1000, 512), (512, 384)))
    exact = left.float() @ right.float()
    meter.product(layer, Gemm.DGRAD, 0, left, right, exact.bfloat16(), None)
    rounding = ((exact.bfloat16().float() - exact).norm() / exact.norm()).item()
    assert meter.gemms[(layer, Gemm.DGRAD)].error.rel_err == pytest.approx(rounding, rel=0.1)


def test_an_expert_without_rows_has_no_products() -> None:
    layer, meter = Layer("m", "", {}, 1, ("m.weight",)), Meter()
    empty = torch.empty(0, 16)
    meter.product(layer, Gemm.FPROP, 0, empty, torch.randn(16, 8), torch.empty(0, 8), None)
    assert not meter.gemms


def test_short_results_are_compared_whole() -> None:
    (found,) = compare(_loaded(nn.Linear(64, 48), _randn(1000, 64, seed=0)), "mxfp8").candidates
    assert {gemm.coverage for gemm in found.gemms} == {1.0}


def test_a_long_result_that_is_not_finite() -> None:
    layer, meter = Layer("m", "", {}, 1, ("m.weight",)), Meter()
    left, right = torch.randn(1000, 512), torch.randn(512, 384)
    result = left @ right
    meter.product(layer, Gemm.DGRAD, 0, left, right, result, None)
    assert meter.first_nonfinite == ""
    result[1, 3] = math.inf
    meter.product(layer, Gemm.DGRAD, 0, left, right, result, None)
    assert meter.first_nonfinite == f"dgrad of {layer.name}"


def test_equal_seeds_give_equal_bytes(samples: Path) -> None:
    reports = [compare(str(samples / "llama_tiny.py"), "nvfp4", seed=s) for s in (3, 3, 4)]
    texts = [json.dumps(report.to_json(), sort_keys=True) for report in reports]
    assert texts[0] == texts[1] != texts[2]


def test_several_candidates_measure_as_each_alone(samples: Path) -> None:
    model = load_model(str(samples / "mlp.py"), weights=True)
    both = compare(model, ["mxfp8", "nvfp4"])
    for i, factory in enumerate(("mxfp8", "nvfp4")):
        assert compare(model, factory).candidates[0] == both.candidates[i]


def test_the_model_keeps_weights_and_gradients(samples: Path) -> None:
    model = load_model(str(samples / "mlp.py"), weights=True)
    assert model.module is not None
    before = {name: p.detach().clone() for name, p in model.module.named_parameters()}
    compare(model, "nvfp4", steps=2)
    for name, p in model.module.named_parameters():
        assert torch.equal(p, before[name])
        assert p.grad is None
    assert not model.module.training


def test_logits_are_known_by_the_loss_that_reads_them(samples: Path) -> None:
    for name in ("mlp", "llama_tiny", "moe_tiny", "vit_tiny"):
        model = compare(str(samples / f"{name}.py"), "mxfp8").candidates[0].model
        assert model.output == "logits"
        assert model.kl is not None
        assert 0.0 < model.kl < 0.02


def test_experts_without_tokens_are_named(samples: Path) -> None:
    model = load_model(str(samples / "moe_tiny.py"), weights=True)
    few = LoadedModel(
        "few", "python", module=model.module, example_inputs=lambda: (torch.tensor([[1, 2]]),)
    )
    idle = compare(few, "mxfp8", backward=False).candidates[0].idle_experts
    assert set(idle) >= {"layers.0.experts.gate_up_proj", "layers.0.experts.down_proj"}
    assert all(0 < len(experts) < 8 for experts in idle.values())


def test_only_quantizes_what_matches(samples: Path) -> None:
    report = compare(str(samples / "llama_tiny.py"), "nvfp4", only=["layers.2.*"])
    slots = {slot.module for slot in report.candidates[0].slots}
    assert slots
    assert all(module.startswith("layers.2.") for module in slots)
    first = next(x for x in report.candidates[0].layers if x.module.startswith("layers.0."))
    assert first.sqnr_db == math.inf
    with pytest.raises(NothingMatchedError, match="matches no module"):
        compare(str(samples / "llama_tiny.py"), "nvfp4", only=["layer.2.*"])


@pytest.mark.parametrize("grouping", ["role", "module", "gemm"])
def test_one_at_a_time_sorts_by_error(samples: Path, grouping: str) -> None:
    report = compare(str(samples / "mlp.py"), "nvfp4", one_at_a_time=grouping)
    groups = report.sensitivity["nvfp4"]
    assert [g.order for g in groups] == sorted((g.order for g in groups), reverse=True)
    names = {g.group for g in groups}
    assert (
        names
        == {
            "role": {"linear/input", "linear/weight", "linear/grad_output"},
            "module": {"0", "3"},
            "gemm": {"fprop", "dgrad", "wgrad"},
        }[grouping]
    )
    backward_only = {g.group: g for g in groups}.get("wgrad") or groups[-1]
    if grouping != "module":
        assert backward_only.rel_err == 0.0
        assert backward_only.grad_rel_err is not None
        assert backward_only.grad_rel_err > 0.0


def test_gemm_by_gemm_needs_two_representations(samples: Path) -> None:
    with pytest.raises(UsageError, match="delayed scaling"):
        compare(str(samples / "mlp.py"), "delayed_scaling", one_at_a_time="gemm")
    with pytest.raises(UsageError, match="there is no grouping"):
        compare(str(samples / "mlp.py"), "nvfp4", one_at_a_time="layer")


def test_training_of_the_reference_plan_is_the_reference(samples: Path) -> None:
    report = compare(str(samples / "mlp.py"), ["nvfp4", "mxfp8"], reference="mxfp8", steps=3)
    reference, nvfp4, mxfp8 = report.training
    assert mxfp8.losses == reference.losses
    assert (mxfp8.divergence_step, mxfp8.max_loss_diff) == (None, 0.0)
    assert nvfp4.losses != reference.losses
    assert len(nvfp4.losses) == len(nvfp4.grad_norms) == 3


def test_nan_names_where_it_appeared_first() -> None:
    class Poisoned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).sub(1e9).sqrt())

    model = _loaded(Poisoned(), _randn(8, 32, seed=0))
    found = compare(model, "mxfp8", backward=False).candidates[0].model.first_nonfinite
    assert found == "the reference run: output of second"


def test_a_plan_that_quantizes_nothing_is_no_comparison(samples: Path) -> None:
    with pytest.raises(NothingMatchedError, match="quantizes no layer of this model"):
        compare(str(samples / "mlp.py"), "high_precision")


def test_without_data_the_choices_are_named() -> None:
    with pytest.raises(UsageError, match="no input data") as raised:
        compare(nn.Linear(32, 32), "mxfp8")
    assert "--data FILE" in raised.value.expected


def test_safetensors_batches(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"input": _randn(10, 64, seed=0)}, tmp_path / "x.safetensors")
    options = DataOptions(tmp_path / "x.safetensors", samples=7, batch_size=3)
    report = compare(nn.Linear(64, 32), "mxfp8", data=options)
    assert (report.data["samples"], report.data["batches"]) == (7, 3)
    assert next(s for s in report.candidates[0].slots if s.operand == "input").numel == 7 * 64


def test_repeats_learn_the_noise_of_stochastic_rounding(samples: Path) -> None:
    noisy = compare(str(samples / "mlp.py"), "nvfp4", repeats=2).noise
    assert noisy
    assert compare(str(samples / "mlp.py"), "mxfp8", repeats=2).noise == {}


def test_dtypes_have_names() -> None:
    from qrole.comparing import named_dtype

    assert named_dtype("bfloat16") is torch.bfloat16
    with pytest.raises(UnknownNameError, match="there is no dtype 'float8'"):
        named_dtype("float8")


def test_modules_with_their_own_quantizers_are_measured_too() -> None:
    from qrole.modules.linear import Linear

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.own = Linear(64, 64, device="cpu", name="own")
            self.plain = nn.Linear(64, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.plain(self.own(x))

    module = Mixed()
    kept = dict(module.own.quantizers)
    found = compare(_loaded(module, _randn(32, 64, seed=1)), "mxfp8").candidates[0]
    assert {(g.module, g.gemm) for g in found.gemms} >= {("own", "fprop"), ("plain", "fprop")}
    assert {s.module for s in found.slots} == {"own", "plain"}
    assert found.not_computed == {}
    assert module.own.quantizers == kept
