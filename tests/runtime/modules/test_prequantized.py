"""Tensors that carry their quantized form to the next module."""

from __future__ import annotations

import torch

from qrole.autocasting import autocast
from qrole.dtypes import DType
from qrole.modules import Linear
from qrole.modules.fake_quantize import fake_quantize
from qrole.modules.prequantized import attach_quantized, quantized_form
from qrole.quantizers import Float8CurrentScalingQuantizer, MXFP8Quantizer
from qrole.recipes import DelayedScaling, Float8CurrentScaling
from tests.runtime.modules.training import BF16, noise


def _quantizer():
    return MXFP8Quantizer(DType.kFloat8E4M3)


def test_the_form_stays_with_the_object_until_it_is_changed():
    x = torch.randn(32, 32)
    form = _quantizer()(x)
    assert quantized_form(x) is None
    attach_quantized(x, form)
    assert quantized_form(x) is form
    assert quantized_form(x.view(32, 32)) is None
    assert quantized_form(x.clone()) is None
    x.add_(1)
    assert quantized_form(x) is None


def test_gradients_carry_theirs_through_autograd():
    """The gradient that a module hands on is the object that the module before receives."""
    seen = []
    x = torch.randn(32, 32, requires_grad=True)
    first = x * 1
    first.register_hook(lambda grad: seen.append(quantized_form(grad)))
    second = fake_quantize(first, None, _quantizer(), carry=True)
    second.backward(torch.randn(32, 32))
    assert seen[0] is not None
    assert torch.equal(seen[0].dequantize(), x.grad)


def test_a_quantized_output_is_not_quantized_again():
    """Two layers with `fp8_output` in between: the second's input slot records no amax."""
    torch.manual_seed(0)
    first, second = (Linear(32, 32, params_dtype=BF16) for _ in range(2))
    x = noise(32, 32, seed=1).requires_grad_()
    with autocast(recipe=DelayedScaling()):
        hidden = first(x, fp8_output=True)
        y = second(hidden, fp8_grad=True)
    y.backward(noise(32, 32, seed=2))
    assert quantized_form(hidden) is not None
    assert second.fp8_meta["scaling_fwd"].scale[0] == 1
    assert first.fp8_meta["scaling_fwd"].scale[2] != 1
    assert second.fp8_meta["scaling_bwd"].scale[1] != 1
    assert first.fp8_meta["scaling_bwd"].scale[0] == 1


def test_a_quantized_output_holds_the_dequantized_values():
    torch.manual_seed(0)
    module, x = Linear(32, 32, params_dtype=BF16), noise(32, 32, seed=1)
    with autocast(recipe=Float8CurrentScaling()):
        plain, given = module(x), module(x, fp8_output=True)
    quantizer = Float8CurrentScalingQuantizer(DType.kFloat8E4M3, device="cuda")
    assert torch.equal(given, quantizer(plain.detach()).dequantize())
    assert not torch.equal(given, plain)
