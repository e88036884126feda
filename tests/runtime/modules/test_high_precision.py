"""Without autocast the modules are what torch.nn has under other names."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qrole.modules as M
from qrole.errors import ConfigError, UnknownNameError
from qrole.modules.activation import ACTIVATIONS, activation
from tests.runtime.modules.training import BF16, noise

dtypes = pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["fp32", "bf16"])


def _backward(x, y, *parameters):
    return torch.autograd.grad(y, (x, *parameters), noise(*y.shape, seed=3, dtype=y.dtype))


def _equal(given, expected):
    for a, b in zip(given, expected, strict=True):
        assert torch.equal(a, b)


@dtypes
@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_torchs(dtype, bias):
    ours = M.Linear(64, 48, bias=bias, params_dtype=dtype)
    theirs = nn.Linear(64, 48, bias=bias, dtype=dtype)
    theirs.load_state_dict(ours.state_dict())
    x = noise(5, 7, 64, seed=1, dtype=dtype).requires_grad_()
    y, expected = ours(x), theirs(x)
    _equal([y], [expected])
    _equal(_backward(x, y, *ours.parameters()), _backward(x, expected, *theirs.parameters()))


@dtypes
@pytest.mark.parametrize("normalization", ["LayerNorm", "RMSNorm"])
def test_layernorm_linear_is_a_norm_and_a_linear_layer(dtype, normalization):
    ours = M.LayerNormLinear(64, 48, normalization=normalization, params_dtype=dtype)
    with torch.no_grad():
        ours.layer_norm_weight.add_(noise(64, seed=2, dtype=dtype))
    norm = getattr(nn, normalization)(64, eps=1e-5, dtype=dtype)
    linear = nn.Linear(64, 48, dtype=dtype)
    with torch.no_grad():
        norm.weight.copy_(ours.layer_norm_weight)
        linear.weight.copy_(ours.weight)
        linear.bias.copy_(ours.bias)
    x = noise(5, 7, 64, seed=1, dtype=dtype).requires_grad_()
    y, expected = ours(x), linear(norm(x))
    _equal([y], [expected])
    given = _backward(x, y, ours.layer_norm_weight, ours.weight, ours.bias)
    _equal(given, _backward(x, expected, norm.weight, linear.weight, linear.bias))


@pytest.mark.parametrize("normalization", ["LayerNorm", "RMSNorm"])
def test_zero_centered_gamma_is_stored_without_the_one(normalization):
    ours = M.LayerNormLinear(16, 16, normalization=normalization, zero_centered_gamma=True)
    plain = M.LayerNormLinear(16, 16, normalization=normalization)
    assert not ours.layer_norm_weight.any()
    gamma = noise(16, seed=2, dtype=torch.float32)
    plain.load_state_dict({**ours.state_dict(), "layer_norm_weight": 1 + gamma})
    with torch.no_grad():
        ours.layer_norm_weight.copy_(gamma)
    x = torch.randn(4, 16)
    torch.testing.assert_close(ours(x), plain(x))


REFERENCE = {
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "qgelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "srelu": lambda x: F.relu(x) ** 2,
    "silu": F.silu,
    "glu": torch.sigmoid,
    "clamped_swiglu": None,
}
GATE = {"geglu": "gelu", "glu": "glu", "qgeglu": "qgelu", "reglu": "relu"}
GATE |= {"sreglu": "srelu", "swiglu": "silu"}


def _expected(name, x):
    if name in GATE:
        a, b = x.chunk(2, dim=-1)
        return REFERENCE[GATE[name]](a) * b
    if name == "clamped_swiglu":
        a, b = x.chunk(2, dim=-1)
        a, b = a.clamp(max=7.0), b.clamp(-7.0, 7.0)
        return a * torch.sigmoid(1.702 * a) * (b + 1.0)
    return REFERENCE[name](x)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_layernorm_mlp_with_every_activation(name):
    ours = M.LayerNormMLP(32, 48, activation=name)
    x = torch.randn(6, 32, requires_grad=True)
    normed = F.layer_norm(x, (32,), ours.layer_norm_weight, ours.layer_norm_bias)
    hidden = F.linear(normed, ours.fc1_weight, ours.fc1_bias)
    assert hidden.shape[-1] == (96 if name in (*GATE, "clamped_swiglu") else 48)
    expected = F.linear(_expected(name, hidden), ours.fc2_weight, ours.fc2_bias)
    torch.testing.assert_close(ours(x), expected)


def test_activations_are_taken_in_fp32_and_rounded_once():
    x = noise(64, 64, seed=1)
    for name in ACTIVATIONS:
        assert torch.equal(activation(name)(x), _expected(name, x.float()).to(BF16))


def test_activation_parameters_reach_the_function():
    ours = M.LayerNormMLP(
        16, 16, activation="clamped_swiglu", activation_params={"limit": 0.5, "alpha": 1.0}
    )
    x = torch.full((1, 4), 3.0)
    gate = 0.5 / (1 + math.exp(-0.5))
    assert ours.activation(x).tolist() == [[pytest.approx(gate * 1.5)] * 2]


def test_unknown_activations_and_parameters_are_named():
    with pytest.raises(
        UnknownNameError, match=r"no activation 'swigluu'[^']*did you mean 'swiglu'"
    ):
        M.LayerNormMLP(16, 16, activation="swigluu")
    with pytest.raises(UnknownNameError, match="parameter of activation gelu 'limit'"):
        M.LayerNormMLP(16, 16, activation_params={"limit": 7.0})


def test_results_besides_the_output_come_in_transformer_engines_order():
    x = torch.randn(4, 16)
    linear = M.Linear(16, 16, return_bias=True)
    y, bias = linear(x)
    torch.testing.assert_close(y, F.linear(x, linear.weight))
    assert bias is linear.bias
    mlp = M.LayerNormMLP(16, 16, return_bias=True, return_layernorm_output=True)
    y, bias, normed = mlp(x)
    assert bias is mlp.fc2_bias
    torch.testing.assert_close(normed, F.layer_norm(x, (16,)))
    both = M.LayerNormLinear(16, 16, return_layernorm_output=True)
    y, normed = both(x)
    torch.testing.assert_close(y, F.linear(normed, both.weight, both.bias))


def test_parameters_split_makes_one_weight_of_several():
    split = M.Linear(16, 48, parameters_split={"q_": 16, "kv": 32})
    assert [n for n, _ in split.named_parameters()] == [
        "q_weight",
        "kv_weight",
        "q_bias",
        "kv_bias",
    ]
    x = torch.randn(4, 16)
    expected = F.linear(x, torch.cat([split.q_weight, split.kv_weight]))
    torch.testing.assert_close(split(x), expected)
    assert M.Linear(16, 48, parameters_split=("a", "b", "c")).a_weight.shape == (16, 16)
    for bad in ((), {"q": 16}, ("a", "b", "c", "d", "e")):
        with pytest.raises(ConfigError, match="parts whose sizes add up to 48"):
            M.Linear(16, 48, parameters_split=bad)


def test_grouped_linear_is_a_linear_layer_per_expert():
    module = M.GroupedLinear(3, 16, 24)
    x = torch.randn(10, 16, requires_grad=True)
    y = module(x, [4, 0, 5])
    parts = [F.linear(x[:4], module.weight0, module.bias0)]
    parts += [F.linear(x[4:9], module.weight2, module.bias2), torch.zeros(1, 24)]
    expected = torch.cat(parts)
    torch.testing.assert_close(y, expected)
    grads = torch.autograd.grad(y.square().sum(), (x, module.weight0, module.weight1))
    assert not grads[2].any(), "the expert without rows has a gradient of zero"
    assert not grads[0][9:].any(), "rows of no expert have none"
    same = module(x.reshape(2, 5, 16), torch.tensor([4, 0, 5]))
    torch.testing.assert_close(same.reshape(10, 24), expected)


def test_grouped_linear_returns_biases():
    module = M.GroupedLinear(2, 16, 16, return_bias=True)
    _, biases = module(torch.randn(4, 16), [2, 2])
    assert biases == [module.bias0, module.bias1]


@pytest.mark.parametrize(
    ("splits", "text"), [([2], "1 entries for 2 experts"), ([4, 4], "for 4 rows")]
)
def test_grouped_linear_refuses_splits_that_do_not_fit(splits, text):
    with pytest.raises(ConfigError, match=text):
        M.GroupedLinear(2, 16, 16)(torch.randn(4, 16), splits)


@pytest.mark.parametrize("normalization", ["LayerNorm", "RMSNorm"])
@dtypes
def test_norm_modules_are_torchs(normalization, dtype):
    ours = getattr(M, normalization)(32, eps=1e-6, params_dtype=dtype)
    theirs = getattr(nn, normalization)(32, eps=1e-6, dtype=dtype)
    theirs.load_state_dict(ours.state_dict())
    x = noise(4, 32, seed=1, dtype=dtype)
    assert torch.equal(ours(x), theirs(x))


def test_norm_modules_take_the_deprecated_names_and_not_both():
    with pytest.warns(DeprecationWarning, match="hidden_size"):
        assert M.LayerNorm(hidden_size=8).weight.shape == (8,)
    for bad in ({}, {"normalized_shape": 8, "hidden_size": 8}):
        with pytest.raises(ConfigError, match="one of the two"):
            M.RMSNorm(**bad)
    with pytest.raises(ConfigError, match="one of the two"):
        M.RMSNorm(8, dtype=BF16, params_dtype=BF16)


def test_cuda_is_accepted_on_any_machine_and_meta_stays_meta():
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert M.Linear(8, 8, device="cuda").weight.device.type == expected
    assert M.Linear(8, 8).weight.device.type == expected
    layer = M.TransformerLayer(64, 64, 4, device="meta")
    assert {p.device.type for p in layer.parameters()} == {"meta"}


def test_initial_values_are_transformer_engines():
    torch.manual_seed(0)
    module = M.LayerNormLinear(512, 512)
    assert module.weight.std().item() == pytest.approx(0.023, rel=0.02)
    assert not module.bias.any()
    assert (module.layer_norm_weight == 1).all()
    filled = M.Linear(8, 8, init_method=lambda w: nn.init.constant_(w, 3.0))
    assert (filled.weight == 3).all()
