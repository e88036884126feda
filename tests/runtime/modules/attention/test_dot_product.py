"""DotProductAttention in high precision, against torch and against its definition."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import qrole.modules as M
from qrole.errors import ConfigError, OperandError, UnknownNameError
from qrole.modules.attention.masks import MASK_TYPES, alibi_slopes, mask_rule
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
