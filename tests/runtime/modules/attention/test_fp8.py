"""FP8 attention against a direct computation of what its slots say."""

from __future__ import annotations

import pytest
import torch

import qrole.modules as M
from qrole.autocasting import autocast
from qrole.dtypes import DType
from qrole.factories import builtin, zoo
from qrole.quantizers import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    IdentityQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
)
from qrole.recipes import (
    CustomRecipe,
    DelayedScaling,
    Float8CurrentScaling,
    IgnoredSettingWarning,
    MXFP8BlockScaling,
)
from tests.runtime.modules.training import BF16, noise

B, H = 2, 4
F32 = torch.float32


def _current(dtype=DType.kFloat8E4M3):
    return Float8CurrentScalingQuantizer(dtype, device="cuda")


def _hat(x, quantizer, direction="rowwise"):
    return quantizer(x).dequantize(F32, direction)


class TestFp8:
    """FP8 attention against a direct computation of what its slots say."""

    def _run(self, recipe, *, tokens=32, mask="no_mask", **options):
        torch.manual_seed(0)
        module = M.DotProductAttention(H, 32, attn_mask_type=mask, qkv_format="bshd")
        q, k, v = (noise(B, tokens, H, 32, seed=i).requires_grad_() for i in range(3))
        with autocast(recipe=recipe):
            y = module(q, k, v, **options)
        dy = noise(*y.shape, seed=5)
        return module, (q, k, v), y, dy, torch.autograd.grad(y, (q, k, v), dy)

    def _expected_current(self, qkv, dy):
        """Current scaling everywhere: one scale for q, k and v, and one for their gradients."""
        q, k, v = (x.detach().transpose(1, 2).contiguous() for x in qkv)
        together = _hat(torch.stack([q, k, v]).reshape(3 * B * H * 32, 32), _current())
        q, k, v = together.view(3, B, H, 32, 32)
        scale = 32**-0.5
        weights = torch.softmax(q @ k.mT * scale, -1)
        rounded = _hat(weights, _current())
        out = (rounded @ v).to(BF16).transpose(1, 2).flatten(2)
        do = _hat(dy, _current(DType.kFloat8E5M2)).to(BF16).float()
        do = do.view(B, 32, H, 32).transpose(1, 2)
        dv, dp = rounded.mT @ do, do @ v.mT
        ds = weights * (dp - (dp * weights).sum(-1, keepdim=True))
        ds = _hat(ds, _current(DType.kFloat8E5M2)) * scale
        grads = torch.stack([ds @ k, ds.mT @ q, dv]).to(BF16)
        grads = _hat(grads.reshape(3 * B * H * 32, 32), _current(DType.kFloat8E5M2)).to(BF16)
        grads = grads.view(3, B, H, 32, 32).transpose(2, 3)
        return _hat(out, _current()).to(BF16), grads

    def test_current_scaling_in_every_slot(self):
        def factory(role):
            backward = role.tensor_type in ("do", "dp") or role.name.endswith("grad_input")
            return _current(DType.kFloat8E5M2 if backward else DType.kFloat8E4M3)

        _, qkv, y, dy, grads = self._run(CustomRecipe(factory, fp8_dpa=True))
        out, expected = self._expected_current(qkv, dy)
        assert torch.equal(y, out)
        for given, wanted in zip(grads, expected, strict=True):
            torch.testing.assert_close(given, wanted, rtol=0.13, atol=1e-5)

    def test_mxfp8_reads_the_blocks_that_each_product_sums_over(self):
        module, qkv, y, dy, grads = self._run(CustomRecipe(builtin.mxfp8_factory, fp8_dpa=True))
        mx = MXFP8Quantizer(DType.kFloat8E4M3)
        q, k, v = (x.detach().transpose(1, 2).contiguous() for x in qkv)
        scale = 32**-0.5
        weights = torch.softmax(_hat(q, mx) @ _hat(k, mx).mT * scale, -1)
        out = (weights @ _hat(v, mx, "columnwise")).to(BF16).transpose(1, 2).flatten(2)
        assert torch.equal(y, _hat(out, mx).to(BF16))
        do = dy.view(B, 32, H, 32).transpose(1, 2).contiguous().float()
        dv = weights.mT @ _hat(do, mx, "columnwise")
        dp = _hat(do, mx) @ _hat(v, mx).mT
        ds = weights * (dp - (dp * weights).sum(-1, keepdim=True)) * scale
        dq, dk = ds @ _hat(k, mx, "columnwise"), ds.mT @ _hat(q, mx, "columnwise")
        for given, wanted in zip(grads, (dq, dk, dv), strict=True):
            wanted = _hat(wanted.to(BF16), mx).to(BF16).transpose(1, 2)
            torch.testing.assert_close(given, wanted, rtol=0.13, atol=1e-5)
        fwd, bwd = module.quantizers["scaling_fwd"], module.quantizers["scaling_bwd"]
        assert (len(fwd), len(bwd)) == (9, 6)
        assert {type(q) for q in fwd + bwd} == {MXFP8Quantizer}

    def test_formats_of_the_mixed_factory(self):
        """CS for QKV, O, dO and dQKV; delayed scaling for S and dP; NVFP4 for the neighbours."""
        recipe = CustomRecipe(zoo.nvfp4_linear_fp8_dpa_factory, fp8_dpa=True)
        module, *_ = self._run(recipe)
        fwd, bwd = module.quantizers["scaling_fwd"], module.quantizers["scaling_bwd"]
        current, delayed = Float8CurrentScalingQuantizer, Float8Quantizer
        assert [type(q) for q in fwd] == [current] * 6 + [delayed] * 3
        assert [type(q) for q in bwd] == [current] * 4 + [delayed] * 2
        assert module.fp8_meta["scaling_fwd"].delayed.scale.shape == (3,)
        linear = M.Linear(32, 32, params_dtype=BF16)
        with autocast(recipe=recipe):
            linear(noise(32, 32, seed=1))
        assert {type(q) for q in linear.quantizers["scaling_fwd"]} == {NVFP4Quantizer}

    def test_built_in_current_scaling_has_delayed_scaling_inside(self):
        module, *_ = self._run(Float8CurrentScaling(fp8_dpa=True))
        fwd, bwd = module.quantizers["scaling_fwd"], module.quantizers["scaling_bwd"]
        current, delayed = Float8CurrentScalingQuantizer, Float8Quantizer
        assert [type(q) for q in fwd] == [current] * 6 + [delayed] * 3
        assert [type(q) for q in bwd] == [current] * 4 + [delayed] * 2
        state = module.fp8_meta["scaling_fwd"]
        assert state.amax_history.shape == (1, 3)
        assert state.recipe.amax_compute_algo == "most_recent"

    @pytest.mark.parametrize(
        "recipe",
        [
            DelayedScaling(fp8_dpa=True),
            Float8CurrentScaling(fp8_dpa=True),
            MXFP8BlockScaling(fp8_dpa=True),
        ],
        ids=lambda r: r.kind,
    )
    @pytest.mark.parametrize("mask", ["no_mask", "causal"])
    def test_it_stays_close_to_high_precision(self, recipe, mask):
        _, _, y, _, grads = self._run(recipe, mask=mask)
        _, _, plain, _, exact = self._run(CustomRecipe(lambda role: IdentityQuantizer()), mask=mask)
        for given, wanted in zip((y, *grads), (plain, *exact), strict=True):
            error = (given - wanted).float().norm() / wanted.float().norm()
            assert 0.0 < error < 0.15

    def test_without_fp8_dpa_nothing_is_quantized(self):
        _, _, y, _, grads = self._run(DelayedScaling())
        module = M.DotProductAttention(H, 32, attn_mask_type="no_mask", qkv_format="bshd")
        q, k, v = (noise(B, 32, H, 32, seed=i).requires_grad_() for i in range(3))
        plain = module(q, k, v)
        assert torch.equal(y, plain)
        exact = torch.autograd.grad(plain, (q, k, v), noise(*y.shape, seed=5))
        assert all(torch.equal(a, b) for a, b in zip(grads, exact, strict=True))

    @pytest.mark.parametrize(
        ("slot", "name"),
        [("qkv", "QKV"), ("s", "S"), ("dpa_output", "O"), ("do", "dO"), ("dp", "dP")],
    )
    def test_formats_that_attention_cannot_use(self, slot, name):
        def factory(role):
            found = role.tensor_type or role.name.rsplit(".", 1)[-1]
            return IdentityQuantizer() if found == slot else _current()

        with pytest.raises(TypeError, match=f"but {name} quantizer is IdentityQuantizer"):
            self._run(CustomRecipe(factory, fp8_dpa=True))
        self._run(CustomRecipe(factory))

    def test_mxfp8_leaves_s_and_dp_to_the_kernel(self):
        def factory(role):
            if role.tensor_type in ("s", "dp"):
                return IdentityQuantizer()
            return MXFP8Quantizer(DType.kFloat8E4M3)

        _, _, y, _, _ = self._run(CustomRecipe(factory, fp8_dpa=True))
        _, _, expected, _, _ = self._run(CustomRecipe(builtin.mxfp8_factory, fp8_dpa=True))
        assert torch.equal(y, expected)

    def test_fp8_mha_forces_fp8_dpa(self, caplog):
        recipe = CustomRecipe(builtin.current_scaling_factory, fp8_mha=True)
        self._run(recipe)
        assert recipe.fp8_dpa
        assert "forcing fp8_dpa=True" in caplog.text

    def test_a_recipe_from_the_environment_is_not_followed(self, monkeypatch):
        monkeypatch.setenv("NVTE_DPA_FP8_RECIPE", "F16")
        with pytest.warns(IgnoredSettingWarning, match="NVTE_DPA_FP8_RECIPE"):
            self._run(DelayedScaling(fp8_dpa=True))

    def test_torch_autocast_does_not_lower_the_precision_inside(self):
        recipe = MXFP8BlockScaling(fp8_dpa=True)
        _, _, y, _, _ = self._run(recipe)
        with torch.autocast("cpu", dtype=BF16):
            _, _, same, _, _ = self._run(recipe)
        assert torch.equal(y, same)
