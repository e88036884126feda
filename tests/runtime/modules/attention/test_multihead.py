"""MultiheadAttention: what its parts hand to each other, and what it computes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import qrole.modules as M
from qrole.autocasting import autocast
from qrole.errors import ConfigError
from qrole.factories import builtin
from qrole.recipes import (
    CustomRecipe,
    DelayedScaling,
)
from tests.runtime.modules.training import BF16, noise


class TestHandedOver:
    """FP8 multi-head attention: tensors between its parts are quantized once."""

    def _layer(self, recipe, steps=2, **options):
        torch.manual_seed(0)
        module = M.MultiheadAttention(
            64, 4, attention_dropout=0.0, params_dtype=BF16, name="a", **options
        )
        for i in range(steps):
            x = noise(32, 2, 64, seed=i).requires_grad_()
            with autocast(recipe=recipe):
                y = module(x)
            module.zero_grad()
            y.backward(noise(*y.shape, seed=5))
        return module, y, x.grad

    def test_custom_delayed_scaling_equals_the_built_in_recipe(self):
        custom = CustomRecipe(builtin.delayed_scaling_factory, fp8_dpa=True, fp8_mha=True)
        given = self._layer(custom, steps=3)
        expected = self._layer(DelayedScaling(fp8_dpa=True, fp8_mha=True), steps=3)
        assert torch.equal(given[1], expected[1])
        assert torch.equal(given[2], expected[2])
        pairs = zip(given[0].parameters(), expected[0].parameters(), strict=True)
        assert all(torch.equal(a.grad, b.grad) for a, b in pairs)

    def test_readers_do_not_quantize_what_comes_quantized(self):
        """Whoever hands a tensor over records its amax; the slot of its reader records none."""
        recipe = CustomRecipe(builtin.delayed_scaling_factory, fp8_dpa=True, fp8_mha=True)
        module, _, _ = self._layer(recipe)
        qkv, attention, proj = module.qkv, module.core_attention, module.proj

        def used(part, mode):
            """A slot that saw a tensor has a scale other than 1 by now."""
            state = part.fp8_meta[f"scaling_{mode}"].delayed
            return [scale != 1 for scale in state.scale.tolist()]

        assert used(qkv, "fwd") == [True, True, True]
        assert used(attention, "fwd") == [False] * 3 + [True, False, False] + [False] * 2 + [True]
        assert used(proj, "fwd") == [False, True, False]
        assert used(proj, "bwd") == [True, True]
        assert used(attention, "bwd") == [True, False, False, False, False, True]
        assert used(qkv, "bwd") == [False, False]

    def test_every_reader_quantizes_for_itself_with_fp8_dpa_alone(self):
        recipe = CustomRecipe(builtin.delayed_scaling_factory, fp8_dpa=True)
        module, _, _ = self._layer(recipe)
        state = module.proj.fp8_meta["scaling_fwd"].delayed
        assert state.scale[0] != 1
        state = module.core_attention.fp8_meta["scaling_fwd"].delayed
        assert [scale != 1 for scale in state.scale.tolist()].count(True) == 3


class TestMultihead:
    def _reference(self, module, x, *, fused=None):
        """Self attention from the module's own parameters, heads one after the other."""
        qkv = F.linear(
            x, torch.cat([module.qkv.query_weight, module.qkv.key_weight, module.qkv.value_weight])
        )
        q, k, v = qkv.chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (4, 16)).permute(1, 2, 0, 3) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(out.permute(2, 0, 1, 3).flatten(2), module.proj.weight)

    def test_self_attention(self):
        module = M.MultiheadAttention(64, 4, attention_dropout=0.0, bias=False)
        x = torch.randn(8, 2, 64)
        torch.testing.assert_close(module(x), self._reference(module, x))

    def test_fused_weights_interleave_heads_or_not(self):
        split = M.MultiheadAttention(64, 4, attention_dropout=0.0, bias=False)
        names = ("query_weight", "key_weight", "value_weight")
        parts = [getattr(split.qkv, name).detach() for name in names]
        x = torch.randn(8, 2, 64)
        for interleaved in (False, True):
            fused = M.MultiheadAttention(
                64,
                4,
                attention_dropout=0.0,
                bias=False,
                fuse_qkv_params=True,
                qkv_weight_interleaved=interleaved,
            )
            with torch.no_grad():
                fused.proj.weight.copy_(split.proj.weight)
                heads = torch.stack([p.view(4, 16, 64) for p in parts], dim=int(interleaved))
                fused.qkv.weight.copy_(heads.reshape(192, 64))
            torch.testing.assert_close(fused(x), split(x))

    def test_cross_attention(self):
        module = M.MultiheadAttention(
            64,
            4,
            attention_dropout=0.0,
            bias=False,
            attention_type="cross",
            attn_mask_type="no_mask",
        )
        x, encoded = torch.randn(8, 2, 64), torch.randn(5, 2, 64)
        q = F.linear(x, module.query_layer.weight)
        k = F.linear(encoded, module.key_value.key_weight)
        v = F.linear(encoded, module.key_value.value_weight)
        q, k, v = (t.unflatten(-1, (4, 16)).permute(1, 2, 0, 3) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3).flatten(2)
        torch.testing.assert_close(
            module(x, encoder_output=encoded), F.linear(out, module.proj.weight)
        )
        with pytest.raises(ConfigError, match="without encoder_output"):
            module(x)

    @pytest.mark.parametrize("interleaved", [False, True])
    def test_rotary_embedding_depends_on_distance_alone(self, interleaved):
        """A query and a key turned by their positions meet at the angle of their distance."""
        angles = M.RotaryPositionEmbedding(16, interleaved=interleaved)(32)
        q, k = torch.randn(16), torch.randn(16)
        turned_q, turned_k = (
            M.apply_rotary_pos_emb(x.expand(32, 1, 1, 16), angles, interleaved=interleaved)[:, 0, 0]
            for x in (q, k)
        )
        products = turned_q @ turned_k.t()
        for distance in (0, 3, 7):
            along = products.diagonal(distance)
            torch.testing.assert_close(along, along[:1].expand_as(along), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(turned_q[0], q)

    def test_rotary_embedding_layouts(self):
        angles = M.RotaryPositionEmbedding(16)(8)
        x = torch.randn(8, 2, 4, 16)
        expected = M.apply_rotary_pos_emb(x, angles)
        other = M.apply_rotary_pos_emb(x.transpose(0, 1), angles, "bshd").transpose(0, 1)
        assert torch.equal(other, expected)
        thd = torch.cat([x[:, 0], x[:5, 1], x[:1, 0]])
        cumulative = torch.tensor([0, 8, 13], dtype=torch.int32)
        given = M.apply_rotary_pos_emb(thd, angles, "thd", cu_seqlens=cumulative)
        assert torch.equal(given, torch.cat([expected[:, 0], expected[:5, 1], x[:1, 0]]))
        with pytest.raises(ConfigError, match="8 positions and angles for 4"):
            M.apply_rotary_pos_emb(x, angles[:4])

    @pytest.mark.parametrize("kind", ["L2Normalization", "RMSNorm", "LayerNorm"])
    @pytest.mark.parametrize("before", [False, True])
    def test_norms_of_queries_and_keys(self, kind, before):
        module = M.MultiheadAttention(
            64, 4, attention_dropout=0.0, qk_norm_type=kind, qk_norm_before_rope=before
        )
        angles = M.RotaryPositionEmbedding(16)(8)
        seen = {}
        module.core_attention.register_forward_pre_hook(
            lambda _, args: seen.update(q=args[0], k=args[1])
        )
        module(torch.randn(8, 2, 64), rotary_pos_emb=angles)
        power = seen["q"].float().square().sum(-1)
        expected = torch.tensor(1.0 if kind == "L2Normalization" else 16.0)
        torch.testing.assert_close(power, expected.expand_as(power), rtol=1e-3, atol=1e-3)
