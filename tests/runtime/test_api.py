"""The functions of the package: every form of a model, a factory and data, and what is refused."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qrole
from qrole.comparing import Budget, load_budgets
from qrole.diff import read_sides
from qrole.json_values import plain
from qrole.why import why

WIDTH = 64


def tiny(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


def batch(seed: int = 1) -> torch.Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(seed))


def mxfp8(role: qrole.QuantizerRole | None) -> qrole.Quantizer:
    return qrole.MXFP8Quantizer(qrole.DType.kFloat8E4M3)


class Keywords(nn.Module):
    """Takes its input by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny()

    def forward(self, *, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        return out


MODELS: dict[str, Callable[[Path], Any]] = {
    "module": lambda mlp: qrole.load_model(str(mlp), weights=True).module,
    "text": str,
    "path": lambda mlp: mlp,
    "loaded": lambda mlp: qrole.load_model(str(mlp), weights=True),
    "attribute": lambda mlp: f"{mlp}:build",
}


@pytest.mark.parametrize("form", MODELS)
def test_every_form_of_a_model(samples: Path, form: str) -> None:
    model = MODELS[form](samples / "mlp.py")
    assert len(qrole.inspect(model).slots) == 6
    assert qrole.plan(model, "mxfp8").counts() == {"MXFP8 E4M3": 6}
    assert qrole.audit(model, "mxfp8").slots == 6


def test_an_inventory_is_planned_as_it_is(samples: Path) -> None:
    inventory = qrole.inspect(samples / "mlp.py")
    assert qrole.plan(inventory, "mxfp8").inventory is inventory


FACTORIES: dict[str, Callable[[Path], Any]] = {
    "name": lambda folder: "mxfp8",
    "function": lambda folder: mxfp8,
    "factory": lambda folder: qrole.load_factory("mxfp8"),
    "rules as text": lambda folder: str(rules(folder)),
    "rules as path": lambda folder: rules(folder),
    "object": lambda folder: Callable_(),
}


class Callable_:
    def __call__(self, role: qrole.QuantizerRole | None) -> qrole.Quantizer:
        return mxfp8(role)


def rules(folder: Path) -> Path:
    path = folder / "rules.toml"
    path.write_text('version = 1\n[[rule]]\nmodule = "*"\nfactory = "mxfp8"\n')
    return path


@pytest.mark.parametrize("form", FACTORIES)
def test_every_form_of_a_factory(tmp_path: Path, form: str) -> None:
    plan = qrole.plan(tiny(), FACTORIES[form](tmp_path))
    assert {d.label for d in plan} == {"MXFP8 E4M3"}
    assert all(d.answer == mxfp8(None) for d in plan)


NO_FACTORY: dict[str, tuple[Any, str, str]] = {
    "a quantizer": (
        qrole.IdentityQuantizer(),
        "IdentityQuantizer is no factory",
        r"lambda role: IdentityQuantizer\(\.\.\.\)",
    ),
    "a quantizer class": (
        qrole.NVFP4Quantizer,
        "NVFP4Quantizer is no factory",
        r"lambda role: NVFP4Quantizer\(\.\.\.\)",
    ),
    "a custom recipe": (
        qrole.CustomRecipe(qfactory=mxfp8),
        "CustomRecipe is no factory",
        "pass recipe.qfactory",
    ),
    "a recipe": (qrole.NVFP4BlockScaling(), "NVFP4BlockScaling is no factory", "such as 'nvfp4'"),
    "a number": (7, "int is no factory", "`qrole factories` lists the names"),
}


@pytest.mark.parametrize("what", NO_FACTORY)
def test_what_is_no_factory(what: str) -> None:
    given, message, hint = NO_FACTORY[what]
    with pytest.raises(qrole.OperandError, match=message) as caught:
        qrole.plan(tiny(), given)
    assert "a function from a role to a quantizer" in caught.value.expected
    with pytest.raises(qrole.OperandError, match=hint):
        qrole.plan(tiny(), given)


@pytest.mark.parametrize("given", [None, 3, nn.Linear], ids=["None", "int", "class"])
def test_what_is_no_model(given: Any) -> None:
    with pytest.raises(qrole.OperandError, match=r"a \w+ is no model\nexpected: a torch\.nn\.Mod"):
        qrole.inspect(given)


def test_an_audit_takes_settings_and_arguments_win(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.qrole]\ntarget = "sm_90"\nignore = ["QR301"]\nselect = ["QR4"]\n'
    )
    inner = tmp_path / "inner"
    inner.mkdir()

    def codes(**options: Any) -> set[str]:
        report = qrole.audit(tiny(), "nvfp4", **options)
        return {finding.code.name for finding in report.findings}

    assert "QR402" not in codes()
    assert "QR402" in codes(settings=inner)
    assert "QR402" not in codes(settings=inner, target="sm_100")
    assert "QR402" not in codes(settings=inner, ignore=["QR402"])


def test_an_audit_without_a_factory_needs_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(qrole.UsageError, match="Sequential is no directory, and no factory"):
        qrole.audit(tiny())
    qrole.apply(tiny(), "mxfp8", tmp_path / "out", weight_only=True)
    report = qrole.audit(tmp_path / "out", engines=["sglang"])
    assert report.factory == ""
    assert report.failed()


DATA: dict[str, tuple[Callable[[], nn.Module], Any, int]] = {
    "a tensor": (tiny, batch(), 1),
    "a tuple": (tiny, (batch(),), 1),
    "a mapping": (Keywords, {"x": batch()}, 1),
    "what a tokenizer gives": (Keywords, [UserDict({"x": batch()})], 1),
    "tensors": (tiny, [batch(1), batch(2)], 2),
    "tuples": (tiny, [(batch(1),), (batch(2),)], 2),
    "mappings": (Keywords, [{"x": batch(1)}, {"x": batch(2)}], 2),
    "a generator": (tiny, (batch(i) for i in range(3)), 3),
}


@pytest.mark.parametrize("form", DATA)
def test_every_form_of_data(form: str) -> None:
    build, data, batches = DATA[form]
    report = qrole.compare(build(), ["mxfp8", mxfp8], data=data)
    assert report.data["batches"] == batches
    assert report.data["samples"] == 8 * batches
    one, two = report.candidates
    assert one.model == two.model
    assert one.model.sqnr_db is not None
    assert 20 < one.model.sqnr_db < 40


def test_samples_limits_what_is_fed() -> None:
    data = [batch(i) for i in range(5)]
    assert qrole.compare(tiny(), "mxfp8", data=data, samples=2).data["batches"] == 2


def test_data_in_a_file(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "inputs.safetensors"
    save_file({"x": batch()}, path)
    report = qrole.compare(Keywords(), "mxfp8", data=path, batch_size=3)
    assert report.data["source"] == "inputs.safetensors"
    assert report.data["batches"] == 3


def test_a_given_module_is_as_it_was() -> None:
    model = tiny().train()
    model[0].weight.grad = torch.ones_like(model[0].weight)  # type: ignore[union-attr]
    before = copy.deepcopy(model)
    report = qrole.compare(model, "nvfp4", data=batch(), steps=2, dtype="bfloat16", repeats=2)
    assert report.dtype == "bfloat16"
    assert len(report.training) == 2
    for mine, theirs in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.dtype == torch.float32
    assert torch.equal(model[0].weight.grad, torch.ones(2 * WIDTH, WIDTH))  # type: ignore[arg-type]
    assert model.training


def test_loss_and_optimizer_are_used() -> None:
    used: list[str] = []

    def loss(outputs: torch.Tensor, given: tuple[torch.Tensor]) -> torch.Tensor:
        used.append("loss")
        return (outputs - given[0]).square().mean()

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        used.append("optimizer")
        return torch.optim.SGD(parameters, lr=0.1)

    options = {"data": batch(), "loss": loss, "optimizer": optimizer}
    report = qrole.compare(tiny(), "mxfp8", steps=3, **options)
    assert report.objective == "loss function"
    assert used.count("optimizer") == 2
    assert report.training[0].losses[2] < report.training[0].losses[0]


def test_there_has_to_be_data() -> None:
    with pytest.raises(qrole.UsageError, match="there is no input data for Sequential"):
        qrole.compare(tiny(), "mxfp8")


def test_a_model_without_weights_does_not_run() -> None:
    with torch.device("meta"):
        empty = tiny()
    with pytest.raises(qrole.UsageError, match="Sequential has parameters on the meta device"):
        qrole.compare(empty, "mxfp8", data=batch())
    with pytest.raises(qrole.UsageError, match="meta device, and search has to run it"):
        qrole.search(empty, ["mxfp8", "nvfp4"], bits=5, data=batch())
    assert len(qrole.inspect(empty).slots) == 6


@pytest.fixture(scope="module")
def report() -> qrole.Report:
    return qrole.compare(tiny(), "mxfp8", data=batch())


def test_a_gate_takes_budgets_in_every_form(report: qrole.Report, tmp_path: Path) -> None:
    path = tmp_path / "budgets.toml"
    path.write_text('[budgets]\nweight = "sqnr_db >= 99"\n')
    limits: list[Any] = [path, str(path), load_budgets(path), iter(load_budgets(path))]
    for budgets in limits:
        gate = qrole.judge(report, budgets=budgets)
        assert gate.passed is False
        assert {v.metric for v in gate.violations} == {"sqnr_db"}
    assert all(isinstance(budget, Budget) for budget in load_budgets(path))
    assert qrole.judge(report).passed is None


def test_a_gate_takes_a_baseline_in_every_form(report: qrole.Report, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(plain(report.to_json())))
    baselines: list[Any] = [report, report.to_json(), path, str(path)]
    for baseline in baselines:
        assert qrole.judge(report, baseline=baseline).passed is True
    worse = qrole.compare(tiny(), mxfp8, data=batch(), only=["0"])
    with pytest.raises(qrole.NothingMatchedError):
        qrole.judge(worse, baseline=report)


def test_a_module_is_written_verified_and_loaded(tmp_path: Path) -> None:
    model, out = tiny(), tmp_path / "out"
    seen: list[tuple[int, int]] = []
    written = qrole.apply(
        model,
        "nvfp4",
        out,
        data=[batch(1), batch(2)],
        calibration=["max", "2=mse"],
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert written.schemes == {"nvfp4": 2}
    assert any("16 samples" in note for note in written.notes)
    assert seen[-1][0] == seen[-1][1] == written.source_bytes
    assert qrole.verify(out, model).ok
    assert not qrole.verify(out, tiny(seed=5)).ok
    filled = qrole.load(out, into=tiny(seed=5))
    wanted = qrole.NVFP4Quantizer(with_2d_quantization=True)(model[0].weight).dequantize()  # type: ignore[operator,index]
    assert torch.equal(filled[0].weight, wanted)  # type: ignore[index]


def test_changed_weights_are_not_taken_for_those_of_a_stopped_run(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    model, out = tiny(), tmp_path / "out"
    with pytest.raises(qrole.InterruptedRunError):
        qrole.apply(model, "mxfp8", out, weight_only=True, workers=1, on_progress=stop)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    written = qrole.apply(model, "mxfp8", out, weight_only=True)
    assert written.reused_bytes == 0
    assert qrole.verify(out, model).ok


def test_what_a_directory_is_calibrated_with(tmp_path: Path) -> None:
    from tests.runtime.checkpoint.acceptance import models

    source = models.write("llama", tmp_path / "source")
    ids = [{"input_ids": torch.arange(10)[None]}, {"input_ids": torch.arange(20)[None]}]
    written = qrole.apply(source, "nvfp4", tmp_path / "out", data=ids)
    assert any("2 samples" in note and "30 tokens" in note for note in written.notes)
    assert qrole.verify(tmp_path / "out", source).ok
    loaded = qrole.load(tmp_path / "out")
    with pytest.raises(qrole.UsageError, match="LlamaForCausalLM is a model of transformers"):
        qrole.apply(loaded, "nvfp4", tmp_path / "again")  # type: ignore[arg-type]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "fp8": ({"fp8": "statc"}, r"no value of fp8 'statc'[\s\S]*did you mean 'static'\?"),
    "on_shape": ({"on_shape": "skip"}, "no value of on_shape 'skip'"),
    "dead_experts": ({"dead_experts": "zero"}, "no value of dead_experts 'zero'"),
    "layout": ({"layout": "modelop"}, "there is no layout 'modelop'"),
    "engine": ({"engines": ["vlm"]}, "'vlm'"),
    "calibration": ({"calibration": "mean"}, "'mean' is no calibration method"),
    "fuse": ({"fuse": ["q"]}, "'q' joins nothing"),
}


@pytest.mark.parametrize("argument", WRONG)
def test_a_wrong_argument_of_apply(tmp_path: Path, argument: str) -> None:
    options, message = WRONG[argument]
    with pytest.raises(qrole.UsageError, match=message):
        qrole.apply(tiny(), "mxfp8", tmp_path / "out", weight_only=True, **options)
    assert not (tmp_path / "out").exists()


def test_layers_to_fuse_are_named_or_listed(tmp_path: Path) -> None:
    amaxes = []
    for i, fuse in enumerate(([], ["0,2"], [("0", "2")])):
        out = tmp_path / str(i)
        qrole.apply(tiny(), "current_scaling", out, weight_only=True, fuse=fuse)
        codes = qrole.load(out, dequantize=False)
        amaxes.append([float(codes[f"{n}.weight"].amax_rowwise) for n in "02"])  # type: ignore[union-attr,arg-type]
    apart, named, listed = amaxes
    assert apart[0] != apart[1]
    assert named == listed == [max(apart), max(apart)]


def test_a_search_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = tiny()
    found = qrole.search(model, ["nvfp4", mxfp8], bits=6.5, data=batch())
    assert found.metric == "output error"
    assert found.found.bits <= 6.5
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "rules.toml").write_text(
        qrole.search(model, ["nvfp4", "mxfp8"], bits=6.5, data_free=True).rules
    )
    assert len(qrole.plan(model, tmp_path / "rules.toml").counts()) > 1


def test_a_search_needs_one_budget() -> None:
    with pytest.raises(qrole.UsageError, match="2 budgets were given: bits, kl"):
        qrole.search(tiny(), ["nvfp4", "mxfp8"], bits=5, kl=0.1, data=batch())


def test_what_a_transformer_engine_user_expects() -> None:
    torch.manual_seed(0)
    layer = qrole.TransformerLayer(64, 128, 4, name="layer")
    x = torch.randn(6, 2, 64)
    recipe = qrole.CustomRecipe(qfactory=mxfp8)
    with qrole.autocast(enabled=True, recipe=recipe):
        quantized = layer(x)
    exact = layer(x)
    assert not torch.equal(quantized, exact)
    assert qrole.ops.Linear.__module__.startswith("qrole.modules.ops")
    assert callable(qrole.autocast), "the function, whatever modules have been imported"


def test_on_disk_nothing_imports_torch(tmp_path: Path) -> None:
    """Headers are read and weights streamed by `apply` without it."""
    from tests.runtime.checkpoint.corruption import llama_like

    source = llama_like(tmp_path / "source")
    code = (
        "import sys, qrole\n"
        f"qrole.apply({str(source)!r}, 'mxfp8', {str(tmp_path / 'out')!r})\n"
        f"qrole.audit({str(tmp_path / 'out')!r})\n"
        "sys.exit('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    shutil.rmtree(tmp_path / "out")


CHEAP: dict[str, Callable[[Any], object]] = {
    "plan": lambda model: qrole.plan(model, "nope"),
    "audit": lambda model: qrole.audit(model, "nope"),
    "compare": lambda model: qrole.compare(model, ["mxfp8", "nope"]),
    "compare's reference": lambda model: qrole.compare(model, "mxfp8", reference="nope"),
    "search": lambda model: qrole.search(model, ["mxfp8", "nope"], bits=6),
    "apply": lambda model: qrole.apply(model, "nope", "out", data=batch()),
    "why": lambda model: why(model, "0", "nope"),
    "diff": lambda model: read_sides(["mxfp8", "nope"], lambda: qrole.inspect(model)),
}


@pytest.mark.parametrize("function", CHEAP)
def test_a_factorys_name_is_checked_before_a_model_is_loaded(function: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("raise AssertionError('the model was loaded')\n")
    with pytest.raises(qrole.UnknownNameError, match="there is no factory 'nope'"):
        CHEAP[function](tmp_path / "slow.py")


@pytest.mark.parametrize(
    "options",
    [{"one_at_a_time": "rle"}, {"dtype": "int8"}, {"samples": 0}],
    ids=lambda options: next(iter(options)),
)
def test_so_are_the_options_of_a_comparison(options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("raise AssertionError('the model was loaded')\n")
    with pytest.raises(qrole.UsageError):
        qrole.compare(tmp_path / "slow.py", "mxfp8", **options)


def test_so_is_the_number_of_candidates(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("raise AssertionError('the model was loaded')\n")
    with pytest.raises(qrole.UsageError, match="1 candidate was given"):
        qrole.search(tmp_path / "slow.py", ["mxfp8"], bits=6)
