"""Attention: against torch in high precision, against its definition in FP8."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import qrole.modules as M
from qrole.autocast import autocast
from qrole.dtypes import DType
from qrole.errors import ConfigError, OperandError, UnknownNameError
from qrole.factories import builtin, zoo
from qrole.modules.attention.masks import MASK_TYPES, alibi_slopes, mask_rule
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

B, H, Q, K, D = 2, 4, 6, 8, 16
F32 = torch.float32


def _qkv(queries=Q, keys=K, groups=H, dtype=F32, batch=B):
    """(B, S, H, D) tensors that want gradients."""
    shapes = ((batch, queries, H, D), (batch, keys, groups, D), (batch, keys, groups, D))
    return [noise(*s, seed=i, dtype=dtype).requires_grad_() for i, s in enumerate(shapes)]


def _attention(**options):
    return M.DotProductAttention(H, D, **{"qkv_format": "bshd", **options})


def _reference(q, k, v, *, mask=None, bias=0.0, scale=D**-0.5, sink=None):
    """The definition on (B, S, H, D), in fp32, mask True where a position takes no part."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    logits = q @ k.mT * scale + bias
    if mask is not None:
        logits = logits.masked_fill(mask, -math.inf)
    if sink is None:
        weights = torch.softmax(logits, -1)
    else:
        column = sink.view(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
        weights = torch.softmax(torch.cat([logits, column], -1), -1)[..., :-1]
    weights = torch.nan_to_num(weights)
    return (weights @ v).transpose(1, 2).flatten(2)


def _check(y, expected, *inputs):
    torch.testing.assert_close(y, expected)
    grad = noise(*y.shape, seed=9, dtype=y.dtype)
    given, wanted = (torch.autograd.grad(out, inputs, grad) for out in (y, expected))
    for a, b in zip(given, wanted, strict=True):
        torch.testing.assert_close(a, b)


class TestHighPrecision:
    @pytest.mark.parametrize("dtype", [F32, BF16], ids=["fp32", "bf16"])
    def test_causal_is_torchs_bit_for_bit(self, dtype):
        q, k, v = _qkv(keys=Q, dtype=dtype)
        y = _attention()(q, k, v)
        heads = [x.transpose(1, 2) for x in (q, k, v)]
        expected = F.scaled_dot_product_attention(*heads, is_causal=True)
        assert torch.equal(y, expected.transpose(1, 2).flatten(2))

    @pytest.mark.parametrize("layout", ["sbhd", "bshd"])
    @pytest.mark.parametrize("groups", [1, 2, 4])
    def test_layouts_and_grouped_queries(self, layout, groups):
        q, k, v = _qkv(groups=groups)
        module = _attention(qkv_format=layout, num_gqa_groups=groups, attn_mask_type="no_mask")
        turned = [x.transpose(0, 1) if layout == "sbhd" else x for x in (q, k, v)]
        y = module(*turned)
        y = y.transpose(0, 1) if layout == "sbhd" else y
        _check(y, _reference(q, k, v), q, k, v)

    @pytest.mark.parametrize("softmax_type", ["off-by-one", "learnable"])
    def test_a_sink_joins_the_softmax(self, softmax_type):
        q, k, v = _qkv(keys=Q)
        module = _attention(softmax_type=softmax_type)
        with torch.no_grad():
            if softmax_type == "learnable":
                module.softmax_offset.copy_(torch.arange(4.0))
        mask = torch.ones(Q, Q, dtype=torch.bool).triu(1)
        _check(module(q, k, v), _reference(q, k, v, mask=mask, sink=module.softmax_offset), q, k, v)
        assert [n for n, _ in module.named_parameters()] == (
            ["softmax_offset"] if softmax_type == "learnable" else []
        )

    def test_biases(self):
        q, k, v = _qkv()
        bias = noise(1, H, Q, K, seed=4, dtype=F32)
        module = _attention(attn_mask_type="no_mask")
        options = {"core_attention_bias_type": "post_scale_bias", "core_attention_bias": bias}
        _check(module(q, k, v, **options), _reference(q, k, v, bias=bias), q, k, v)
        options["core_attention_bias_type"] = "pre_scale_bias"
        _check(module(q, k, v, **options), _reference(q, k, v, bias=bias / 4), q, k, v)

    def test_a_bias_and_a_causal_mask(self):
        q, k, v = _qkv(keys=Q)
        bias = noise(1, H, Q, Q, seed=4, dtype=F32)
        mask = torch.ones(Q, Q, dtype=torch.bool).triu(1)
        y = _attention()(
            q, k, v, core_attention_bias_type="post_scale_bias", core_attention_bias=bias
        )
        _check(y, _reference(q, k, v, mask=mask, bias=bias), q, k, v)

    def test_alibi(self):
        assert alibi_slopes(4).tolist() == [2**-2, 2**-4, 2**-6, 2**-8]
        assert alibi_slopes(6).tolist() == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
        q, k, v = _qkv(keys=Q)
        distance = torch.arange(Q).view(-1, 1) - torch.arange(Q)
        bias = -distance.abs() * alibi_slopes(H).view(H, 1, 1)
        mask = torch.ones(Q, Q, dtype=torch.bool).triu(1)
        y = _attention()(q, k, v, core_attention_bias_type="alibi")
        _check(y, _reference(q, k, v, mask=mask, bias=bias), q, k, v)

    def test_packed_tensors_are_views_of_three(self):
        q, k, v = _qkv(keys=Q)
        expected = _attention()(q, k, v)
        for dim in (-3, -2):
            packed = torch.stack([q, k, v], dim=dim)
            assert torch.equal(_attention()(qkv_layer=packed, qkv_interleave_dim=dim), expected)
            kv = torch.stack([k, v], dim=dim)
            given = _attention()(q, kv_layer=kv, qkv_interleave_dim=dim)
            assert torch.equal(given, expected)

    def test_largest_logits(self):
        q, k, v = _qkv(keys=Q)
        _, largest = _attention(return_max_logit=True)(q, k, v)
        logits = q.transpose(1, 2) @ k.transpose(1, 2).mT / 4
        logits = logits.masked_fill(torch.ones(Q, Q, dtype=torch.bool).triu(1), -math.inf)
        torch.testing.assert_close(largest, logits.amax(dim=(0, 2, 3)))

    def test_dropout_only_in_training(self):
        q, k, v = _qkv(keys=Q)
        module = _attention(attention_dropout=0.5)
        assert not torch.equal(module(q, k, v), module(q, k, v))
        module.eval()
        assert torch.equal(module(q, k, v), _attention()(q, k, v))


def _allowed(kind, i, j, lengths):
    """Whether query i may see key j, by the definition of the mask type."""
    queries, keys = lengths
    if "padding" in kind and (i >= queries or j >= keys):
        return False
    if kind in ("causal", "padding_causal"):
        return j <= i
    if kind.endswith("bottom_right"):
        return j - keys <= i - queries
    return True


@pytest.mark.parametrize("kind", [k for k in MASK_TYPES if k != "arbitrary"])
def test_mask_types(kind):
    q, k, v = _qkv()
    lengths = [(Q, K), (3, 5)] if "padding" in kind else [(Q, K)] * B
    allowed = [[[_allowed(kind, i, j, n) for j in range(K)] for i in range(Q)] for n in lengths]
    mask = ~torch.tensor(allowed).unsqueeze(1)
    options = {}
    if "padding" in kind:
        options["cu_seqlens_q"] = torch.tensor([0, Q, Q + 3], dtype=torch.int32)
        options["cu_seqlens_kv"] = torch.tensor([0, K, K + 5], dtype=torch.int32)
    module = _attention(attn_mask_type=kind, attention_type="cross")
    _check(module(q, k, v, **options), _reference(q, k, v, mask=mask), q, k, v)
    if "padding" in kind:
        pads = [torch.arange(n) >= torch.tensor([[n], [m]]) for n, m in ((Q, 3), (K, 5))]
        given = module(q, k, v, attention_mask=tuple(p[:, None, None] for p in pads))
        assert torch.equal(given, module(q, k, v, **options))


def test_an_arbitrary_mask():
    q, k, v = _qkv()
    mask = torch.rand(B, 1, Q, K, generator=torch.Generator().manual_seed(0)) < 0.3
    module = _attention(attn_mask_type="arbitrary")
    _check(module(q, k, v, attention_mask=mask), _reference(q, k, v, mask=mask), q, k, v)
    with pytest.raises(OperandError, match="attn_mask_type='arbitrary' with attention_mask=NoneT"):
        module(q, k, v)


@pytest.mark.parametrize(("window", "kind"), [((2, 0), "causal"), ((2, 1), "no_mask")])
def test_a_sliding_window(window, kind):
    q, k, v = _qkv(keys=Q)
    distance = torch.arange(Q).view(-1, 1) - torch.arange(Q)
    mask = (distance > window[0]) | (distance < -window[1])
    module = _attention(attn_mask_type=kind, window_size=window)
    _check(module(q, k, v), _reference(q, k, v, mask=mask), q, k, v)


def test_windows_that_do_not_suit_the_mask():
    with pytest.warns(UserWarning, match=r"window_size should be \(-1, 0\)"):
        assert mask_rule("causal", (-1, -1), None).plainly_causal
    with pytest.warns(UserWarning, match=r"should be \(-1, -1\)"):
        assert mask_rule("no_mask", (-1, 0), None).trivial
    for kind, window in (("causal", (-1, 3)), ("no_mask", (-1, 3)), ("padding", (-2, -1))):
        with pytest.raises(ConfigError, match="window_size"):
            mask_rule(kind, window, None)
    assert mask_rule("padding,causal", None, None).kind == "padding_causal"
    with pytest.raises(UnknownNameError, match="attention mask type 'casual'"):
        mask_rule("casual", None, None)


def test_thd_is_padded_attention_without_the_padding():
    lengths = torch.tensor([6, 3, 5])
    cumulative = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()
    q, k, v = _qkv(queries=6, keys=6, batch=3)
    there = torch.arange(6) < lengths.unsqueeze(1)
    packed = [x.detach()[there].requires_grad_() for x in (q, k, v)]
    options = {"cu_seqlens_q": cumulative, "cu_seqlens_kv": cumulative}
    module = _attention(attn_mask_type="padding_causal")
    expected = module(q, k, v, **options)[there]
    y = module(*packed, qkv_format="thd", **options)
    torch.testing.assert_close(y, expected)
    grad = noise(*y.shape, seed=5, dtype=F32)
    given = torch.autograd.grad(y, packed, grad)
    wanted = torch.autograd.grad(expected, (q, k, v), grad)
    for a, b in zip(given, wanted, strict=True):
        torch.testing.assert_close(a, b[there])


def test_thd_with_padding_between_the_sequences():
    q, k, v = (x.detach()[0] for x in _qkv(queries=8, keys=8))
    lengths = torch.tensor([0, 3, 5], dtype=torch.int32)
    starts = torch.tensor([0, 4, 8], dtype=torch.int32)
    options = {"cu_seqlens_q": lengths, "cu_seqlens_kv": lengths}
    padded = {"cu_seqlens_q_padded": starts, "cu_seqlens_kv_padded": starts}
    module = _attention(attn_mask_type="padding", qkv_format="thd")
    there = torch.tensor([0, 1, 2, 4, 5])
    y = module(q, k, v, **options, **padded)
    torch.testing.assert_close(y[there], module(q[there], k[there], v[there], **options))
    assert not y[[3, 6, 7]].any()


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (3, {"qkv_format": "thd"}, "cu_seqlens_q and cu_seqlens_kv can not be None"),
        (3, {"attn_mask_type": "padding"}, "neither attention_mask nor cu_seqlens"),
        (2, {}, "not all of them"),
        (3, {"inference_params": object()}, "no KV cache"),
        (3, {"core_attention_bias_type": "post_scale_bias"}, "without core_attention_bias"),
        (3, {"core_attention_bias": torch.zeros(1)}, "with core_attention_bias"),
    ],
)
def test_inputs_that_do_not_fit(arguments, options, text):
    q, k, v = _qkv(keys=Q)
    given = [x[0] for x in (q, k, v)] if options.get("qkv_format") == "thd" else [q, k, v]
    with pytest.raises(ConfigError, match=text):
        _attention()(*given[:arguments], **options)


def test_heads_that_do_not_fit():
    q, k, v = _qkv(keys=Q)
    with pytest.raises(ConfigError, match="expected: 2 heads of size 16"):
        _attention(num_gqa_groups=2)(q, k, v)
    with pytest.raises(ConfigError, match="divisible by the number of GQA groups"):
        _attention(num_gqa_groups=3)


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
