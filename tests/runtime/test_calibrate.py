"""Calibration: ranges, methods, rules, and what is said where data does not reach a layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from qrole.calibrate import Method, Range, Rule, calibrate, parse_rule
from qrole.comparing.data import DataOptions
from qrole.errors import ConfigError, NothingMatchedError, UsageError
from qrole.loading import LoadedModel, load_model


def seen(values: torch.Tensor, block: int = 1) -> Range:
    found = Range(block)
    for part in values.chunk(3):
        found.add(part, histogram=True)
    return found


def test_the_largest_magnitude_ignores_nan() -> None:
    x = torch.randn(9, 40)
    x[3, 3], x[4, 4] = torch.nan, -9.5
    assert seen(x).amax == 9.5


def test_percentiles_are_those_of_all_values() -> None:
    x = torch.randn(300, 64, generator=torch.Generator().manual_seed(0))
    found = seen(x)
    for percent in (50.0, 99.0, 99.9):
        exact = float(x.abs().flatten().quantile(percent / 100))
        assert found.percentile(percent) == pytest.approx(exact, rel=2**-7)
    assert found.percentile(100) == pytest.approx(float(x.abs().max()), rel=2**-8)


def test_least_error_clips_one_outlier_but_not_a_uniform_range() -> None:
    uniform = torch.linspace(-1, 1, 4096).reshape(-1, 64)
    assert seen(uniform).least_error() == pytest.approx(1.0, rel=0.1)
    quiet = torch.full((4096, 64), 2.0**-12)
    quiet[0, 0] = 2.0**-3  # with 2^-3 at 448 the rest would be subnormal
    assert seen(quiet).least_error() <= 2.0**-3


def test_blocks_are_counted_by_their_maxima() -> None:
    x = torch.zeros(2, 32)
    x[0, 3], x[1, 20] = 4.0, 2.0
    assert seen(x, block=16).percentile(75) == 2.0
    assert seen(x, block=16).percentile(50) == 0.0


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("max", Rule()),
        ("mse", Rule(method=Method.MSE)),
        ("percentile:99.5", Rule(method=Method.PERCENTILE, percentile=99.5)),
        ("*.down_proj=mse", Rule("*.down_proj", Method.MSE)),
    ],
)
def test_rules(text: str, rule: Rule) -> None:
    assert parse_rule(text) == rule


@pytest.mark.parametrize("text", ["", "median", "percentile:x", "percentile:0", "a=b"])
def test_rules_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"calibration method|percentile of"):
        parse_rule(text)


@pytest.fixture
def mlp(samples: Path) -> LoadedModel:
    return load_model(str(samples / "mlp.py"), weights=True)


def test_inputs_of_a_model(mlp: LoadedModel) -> None:
    assert mlp.module is not None
    inputs: dict[str, float] = {}

    def look(name: str) -> object:
        def hook(module: object, given: tuple[torch.Tensor]) -> None:
            inputs[name] = float(given[0].abs().max())

        return hook

    linear = {n: m for n, m in mlp.module.named_modules() if isinstance(m, torch.nn.Linear)}
    handles = [m.register_forward_pre_hook(look(n)) for n, m in linear.items()]
    found = calibrate(mlp, {(name, "", 0): 1 for name in linear}, DataOptions())
    for handle in handles:
        handle.remove()
    assert {place[0]: amax for place, amax in found.amaxes.items()} == pytest.approx(
        inputs, rel=1e-4
    )
    assert found.samples > 0
    assert len(found.sha256) == 64


def test_a_layer_that_the_model_lacks(mlp: LoadedModel) -> None:
    with pytest.raises(ConfigError, match="1 layers of the checkpoint are none of the loaded"):
        calibrate(mlp, {("nowhere", "", 0): 1}, DataOptions())


def test_layers_under_the_names_of_the_checkpoint() -> None:
    """In memory, Mixtral has other module names than its checkpoints."""
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 2}
    torch.manual_seed(0)
    module = MixtralForCausalLM(MixtralConfig(**sizes, **heads)).eval()
    tokens = torch.arange(24).view(1, 24)
    model = LoadedModel("mixtral", "python", module=module, example_inputs=lambda: (tokens,))

    def amaxes(path: str) -> list[float]:
        wanted = {(path, group, i): 1 for group in ("gate_up_proj", "down_proj") for i in range(2)}
        found = calibrate(model, wanted, DataOptions())
        assert found.dead == {}
        return [found.amaxes[place] for place in wanted]

    stored = amaxes("model.layers.0.block_sparse_moe.experts")
    assert stored == amaxes("model.layers.0.mlp.experts")
    assert all(amax > 0 for amax in stored)


IDLE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return self.used(x)

def build():
    return Model()

def example_inputs():
    return (torch.randn(2, 16),)
"""


def test_a_layer_that_no_data_reaches(tmp_path: Path) -> None:
    path = tmp_path / "idle.py"
    path.write_text(IDLE)
    model = load_model(str(path), weights=True)
    with pytest.raises(NothingMatchedError, match=r"1 layers were not reached .* idle"):
        calibrate(model, {("used", "", 0): 1, ("idle", "", 0): 1}, DataOptions())
