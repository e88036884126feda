"""Operations alone and in pipelines."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qrole.autocasting import autocast
from qrole.dtypes import DType
from qrole.errors import ConfigError, OperandError
from qrole.factories.builtin import delayed_scaling_factory, mxfp8_factory
from qrole.modules import Linear, ops
from qrole.quantizers import Float8Quantizer, IdentityQuantizer, MXFP8Quantizer
from qrole.recipes import CustomRecipe, DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling
from tests.runtime.modules.training import BF16, noise


def _kind(recipe):
    return recipe.kind


def _mlp(dtype=torch.float32):
    torch.manual_seed(0)
    return ops.Sequential(
        ops.LayerNorm(32, dtype=dtype),
        ops.Linear(32, 128, dtype=dtype),
        ops.SwiGLU(),
        ops.Linear(64, 32, bias=False, dtype=dtype),
        ops.Dropout(0.0),
    )


def test_sequential_in_high_precision():
    model, x = _mlp(), torch.randn(4, 32)
    hidden = F.linear(F.layer_norm(x, (32,)), model[1].weight, model[1].bias)
    a, b = hidden.chunk(2, -1)
    torch.testing.assert_close(model(x), F.linear(F.silu(a) * b, model[3].weight))


def test_parameters_lie_where_transformer_engine_keeps_them():
    names = set(_mlp().state_dict())
    assert names == {
        "0.weight",
        "0.bias",
        "1.basic_ops.0.weight",
        "1.basic_ops.1.bias",
        "3.basic_ops.0.weight",
    }


@pytest.mark.parametrize("recipe", [MXFP8BlockScaling(), Float8CurrentScaling()], ids=_kind)
def test_ops_linear_is_the_module_but_for_the_rounding_of_its_bias(recipe):
    op, module = ops.Linear(64, 32, dtype=BF16), Linear(64, 32, params_dtype=BF16)
    with torch.no_grad():
        module.weight.copy_(op.weight)
        module.bias.copy_(op.bias.add_(1))
    x = noise(32, 64, seed=1).requires_grad_()
    with autocast(recipe=recipe):
        given, expected = op(x), module(x)
    torch.testing.assert_close(given, expected, rtol=2**-7, atol=2**-6)
    grads = [torch.autograd.grad(y, x, noise(32, 32, seed=2))[0] for y in (given, expected)]
    assert torch.equal(*grads)


def test_extra_inputs_and_outputs_pass_through_a_sequential():
    model = ops.Sequential(
        ops.MakeExtraOutput(), nn.ReLU(), ops.ConstantScale(2), ops.AddExtraInput()
    )
    x, other = torch.randn(4, 8), torch.randn(4, 8)
    y, copy = model(x, other)
    assert torch.equal(copy, x)
    torch.testing.assert_close(y, 2 * F.relu(x) + other)
    with pytest.raises(ConfigError, match="Expected 1 extra inputs"):
        model(x)


def test_grouped_linear_takes_its_splits_as_an_extra_input():
    op = ops.GroupedLinear(2, 16, 8)
    with torch.no_grad():
        op.bias1.add_(1)
    x = torch.randn(6, 16)
    y = op(x, torch.tensor([2, 3]))
    expected = [F.linear(x[:2], op.weight0, op.bias0), F.linear(x[2:5], op.weight1, op.bias1)]
    torch.testing.assert_close(y, torch.cat([*expected, torch.zeros(1, 8)]))
    with pytest.raises(ConfigError, match="positive number of groups"):
        ops.GroupedLinear(0, 16, 8)


def test_grouped_linear_scales_each_rows_bias():
    op = ops.GroupedLinear(2, 16, 8, scale_bias=True)
    with torch.no_grad():
        op.bias0.add_(1)
        op.bias1.add_(2)
    x, scales = torch.randn(4, 16), torch.tensor([1.0, 2.0, 3.0, 4.0])
    y = op(x, torch.tensor([1, 3]), scales)
    plain = torch.cat([F.linear(x[:1], op.weight0), F.linear(x[1:], op.weight1)])
    bias = torch.tensor([1.0, 2.0, 2.0, 2.0]) * scales
    torch.testing.assert_close(y, plain + bias.unsqueeze(1))


@pytest.mark.parametrize(
    ("op", "function"),
    [
        (ops.Identity(), lambda x: x),
        (ops.Reshape((-1, 4)), lambda x: x.reshape(-1, 4)),
        (ops.RMSNorm(8), lambda x: F.rms_norm(x, (8,), eps=1e-5)),
        (ops.L2Normalization(eps=0.0), lambda x: F.normalize(x, dim=-1)),
        (ops.GELU(), lambda x: F.gelu(x, approximate="tanh")),
        (ops.SReLU(), lambda x: F.relu(x) ** 2),
    ],
    ids=lambda v: type(v).__name__,
)
def test_plain_operations(op, function):
    x = torch.randn(4, 8)
    torch.testing.assert_close(op(x), function(x))


def test_interleaved_gates():
    """[a1 a2 b1 b2 a3 a4 b3 b4] in blocks of two is [a1 a2 a3 a4 b1 b2 b3 b4]."""
    x = torch.randn(3, 8)
    plain = x[:, [0, 1, 4, 5, 2, 3, 6, 7]]
    assert torch.equal(ops.SwiGLU(glu_interleave_size=2)(x), ops.SwiGLU()(plain))
    scales = torch.randn(3)
    scaled = ops.ScaledSwiGLU(2)(x, scales)
    torch.testing.assert_close(scaled, ops.SwiGLU()(plain) * scales.unsqueeze(1))


@pytest.mark.parametrize(
    ("scaled", "plain"),
    [
        (ops.ScaledSReLU(), ops.SReLU()),
        (ops.ScaledSiTUGLU(beta1=2.0), ops.SiTUGLU(beta1=2.0)),
        (ops.ScaledClampedQGeGLU(limit=1.0), ops.ClampedSwiGLU(limit=1.0)),
    ],
    ids=lambda op: type(op).__name__,
)
def test_scaled_activations(scaled, plain):
    x, scales = torch.randn(5, 8), torch.randn(5)
    torch.testing.assert_close(scaled(x, scales), plain(x) * scales.unsqueeze(1))


def test_situglu_is_its_formula():
    x = torch.randn(4, 8)
    a, b = x.chunk(2, -1)
    expected = 4 * torch.tanh(a / 4) * torch.sigmoid(a) * 25 * torch.tanh(b / 25)
    torch.testing.assert_close(ops.SiTUGLU()(x), expected)
    with pytest.raises(ConfigError, match=r"beta1=0\.0 of activation situglu"):
        ops.SiTUGLU(beta1=0.0)


def test_an_activation_may_take_its_gradient_at_the_quantized_input():
    from qrole.quantizers import Float8CurrentScalingQuantizer

    x = torch.randn(16, 32, requires_grad=True)
    dy = torch.randn(16, 32)
    op = ops.GELU(cache_quantized_input=True)
    y = op(x)
    assert torch.equal(y, ops.GELU()(x))
    (given,) = torch.autograd.grad(y, x, dy)
    quantizer = Float8CurrentScalingQuantizer(DType.kFloat8E4M3, device="cuda")
    rounded = quantizer(x.detach()).dequantize().requires_grad_()
    (expected,) = torch.autograd.grad(ops.GELU()(rounded), rounded, dy)
    assert torch.equal(given, expected)
    assert not torch.equal(given, torch.autograd.grad(ops.GELU()(x), x, dy)[0])


class TestNeighbours:
    """An op's output is quantized by the input slot of the next, its gradient by the last's."""

    def _two(self):
        torch.manual_seed(0)
        return [ops.BasicLinear(32, 32, dtype=BF16) for _ in range(2)]

    def test_delayed_scaling_hands_quantized_tensors_over(self):
        first, second = self._two()
        model, x = ops.Sequential(first, second), noise(32, 32, seed=1).requires_grad_()
        with autocast(recipe=DelayedScaling()):
            y = model(x)
        hidden = first.weight.detach()
        one = Float8Quantizer(torch.ones(()), torch.zeros(()), DType.kFloat8E4M3)
        x_hat, w_hat, v_hat = (
            one(t).dequantize(torch.float32) for t in (x.detach(), hidden, second.weight.detach())
        )
        middle = one((x_hat @ w_hat.t()).to(BF16)).dequantize(torch.float32)
        assert torch.equal(y, (middle @ v_hat.t()).to(BF16))
        y.backward(noise(32, 32, seed=2))
        assert x.grad is not None

    def test_other_formats_are_refused_between_two_gemms(self):
        model, x = ops.Sequential(*self._two()), noise(32, 32, seed=1)
        with (
            pytest.raises(OperandError, match="unsupported quantizer MXFP8Quantizer"),
            autocast(recipe=CustomRecipe(mxfp8_factory)),
        ):
            model(x)
        first, second = self._two()
        with autocast(recipe=CustomRecipe(mxfp8_factory)):
            ops.Sequential(first, ops.Identity(), second)(x)

    def test_quantize_rounds_forward_and_backward(self):
        def factory(role):
            return MXFP8Quantizer(DType.kFloat8E4M3)

        x, dy = noise(32, 64, seed=1).requires_grad_(), noise(32, 64, seed=2)
        for forward, backward in ((True, False), (False, True), (True, True)):
            op = ops.Quantize(forward, backward)
            with pytest.warns(UserWarning, match="bare"), autocast(recipe=CustomRecipe(factory)):
                y = op(x)
            (grad,) = torch.autograd.grad(y, x, dy)
            rounded = [factory(None)(t.detach()).dequantize() for t in (x, dy)]
            assert torch.equal(y, rounded[0] if forward else x)
            assert torch.equal(grad, rounded[1] if backward else dy)
        assert torch.equal(ops.Quantize()(x), x)

    def test_quantize_leaves_the_gradient_under_an_override(self):
        op, x = ops.Quantize(True, True), noise(32, 64, seed=1).requires_grad_()
        with autocast(recipe=MXFP8BlockScaling(backward_override="high_precision")):
            y = op(x)
        dy = noise(32, 64, seed=2)
        (grad,) = torch.autograd.grad(y, x, dy)
        assert torch.equal(grad, dy)

    def test_a_linear_op_reads_what_quantize_made(self):
        """Its own input slot sees nothing: with delayed scaling, no amax is recorded."""

        def factory(role):
            asked = delayed_scaling_factory(role)
            return asked if role.tensor_type else MXFP8Quantizer(DType.kFloat8E4M3)

        quantize, linear = ops.Quantize(), ops.BasicLinear(32, 32, dtype=BF16)

        def all_mxfp8(role):
            return MXFP8Quantizer(DType.kFloat8E4M3)

        x = noise(32, 32, seed=1).requires_grad_()
        with pytest.warns(UserWarning, match="bare"), autocast(recipe=CustomRecipe(all_mxfp8)):
            y = ops.Sequential(quantize, linear)(x)
        with autocast(recipe=CustomRecipe(all_mxfp8)):
            expected = ops.Sequential(ops.Identity(), linear)(x)
        assert torch.equal(y, expected)
        given, wanted = (
            torch.autograd.grad(out, (x, linear.weight), noise(32, 32, seed=2))
            for out in (y, expected)
        )
        assert all(torch.equal(a, b) for a, b in zip(given, wanted, strict=True))


def test_an_operation_of_ones_own():
    """What TransformerEngine calls an op that others write: a compute rule, slots if it likes."""

    class Shift(ops.BasicOperation):
        def op_forward(self, x, *extra, prev_op_grad_output_quantizer, next_op_input_quantizer):
            return x + 1

    x = torch.randn(4, 32)
    model = ops.Sequential(Shift(), ops.BasicLinear(32, 32))
    with autocast(recipe=CustomRecipe(lambda role: IdentityQuantizer())):
        y = model(x)
    torch.testing.assert_close(y, F.linear(x + 1, model[1].weight))
