"""TransformerLayer: residuals, norms and branches."""

from __future__ import annotations

import pytest
import torch

import qrole.modules as M
from qrole.autocasting import autocast
from qrole.errors import ConfigError
from qrole.recipes import (
    Float8CurrentScaling,
)
from tests.runtime.modules.training import BF16, noise


class TestTransformerLayer:
    def _build(self, **options):
        return M.TransformerLayer(64, 96, 4, hidden_dropout=0.0, attention_dropout=0.0, **options)

    def test_residuals(self):
        layer, x = self._build(), torch.randn(8, 2, 64)
        attended, bias = layer.self_attention(x)
        middle = x + attended + bias
        mlp, bias = layer.layernorm_mlp(middle)
        torch.testing.assert_close(layer(x), middle + mlp + bias)

    def test_residuals_behind_the_norms(self):
        layer, x = self._build(apply_residual_connection_post_layernorm=True), torch.randn(8, 2, 64)
        attended, bias, normed = layer.self_attention(x)
        middle = normed + attended + bias
        mlp, bias, normed = layer.layernorm_mlp(middle)
        torch.testing.assert_close(layer(x), normed + mlp + bias)

    def test_a_norm_at_the_end(self):
        layer, x = self._build(output_layernorm=True), torch.randn(8, 2, 64)
        y = layer(x)
        assert not layer.self_attention.input_layernorm
        torch.testing.assert_close(y.mean(-1), torch.zeros(8, 2), rtol=0, atol=1e-5)

    def test_attention_beside_the_mlp(self):
        layer, x = self._build(parallel_attention_mlp=True), torch.randn(8, 2, 64)
        torch.testing.assert_close(layer(x), x + layer.self_attention(x) + layer.layernorm_mlp(x))
        for bad in ({"layer_type": "decoder"}, {"output_layernorm": True}):
            with pytest.raises(ConfigError, match="parallel_attention_mlp=True"):
                self._build(parallel_attention_mlp=True, **bad)

    def test_a_decoder(self):
        layer = self._build(layer_type="decoder")
        x, encoded = torch.randn(8, 2, 64), torch.randn(5, 2, 64)
        attended, bias = layer.self_attention(x)
        first = x + attended + bias
        crossed, bias = layer.inter_attention(first, encoder_output=encoded)
        second = first + crossed + bias
        mlp, bias = layer.layernorm_mlp(second)
        torch.testing.assert_close(layer(x, encoder_output=encoded), second + mlp + bias)

    def test_dropped_branches_leave_the_residual(self):
        layer = self._build(drop_path_rate=0.999999, attn_input_format="bshd")
        x = torch.randn(2, 8, 64)
        assert torch.equal(layer(x), x)
        layer.eval()
        assert not torch.equal(layer(x), x)

    def test_override_of_the_backward_pass_is_refused_by_the_mlp(self):
        layer = self._build(params_dtype=BF16)
        recipe = Float8CurrentScaling(backward_override="dequantized")
        with (
            pytest.raises(ConfigError, match="backward_override='dequantized' and LayerNormMLP"),
            autocast(recipe=recipe),
        ):
            layer(noise(32, 2, 64, seed=1))
