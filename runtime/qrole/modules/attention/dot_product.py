"""DotProductAttention: nine forward and six backward slots, six of the fifteen read."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from qrole.errors import ConfigError
from qrole.modules.attention.core import attend, largest_logits
from qrole.modules.attention.fp8 import attend_quantized
from qrole.modules.attention.inputs import (
    attention_bias,
    one_of,
    padding_of,
    refuse,
    sequences,
    the_mask,
    unpacked,
)
from qrole.modules.attention.layout import FORMATS, from_heads_first, to_heads_first
from qrole.modules.attention.masks import MaskRule, attention_mask, mask_rule, mask_type
from qrole.modules.attention.slots import AttentionModule
from qrole.modules.fake_quantize import fake_quantize
from qrole.modules.keywords import AttentionKeywords, check_keywords
from qrole.modules.parameters import resolve_device
from qrole.modules.prequantized import quantized_form

__all__ = ["SOFTMAX_TYPES", "DotProductAttention"]

SOFTMAX_TYPES: tuple[str, ...] = ("vanilla", "off-by-one", "learnable")


class DotProductAttention(AttentionModule):
    """`softmax(scale * q k^T + bias) v`.

    With `fp8_dpa` in the recipe it computes in FP8, see `fp8.py`; slots are those of
    `AttentionModule`. O and dQKV leave the module: without a role from outside they bear a hint,
    a role that has nothing but a name ending in `dpa_output` or `dpa_grad_input`.

    Args:
        num_attention_heads: Heads of the queries.
        kv_channels: Head size, or the sizes of keys and of values.
        num_gqa_groups: Heads of keys and values; as many as the queries' where None.
        attention_dropout: Probability of dropping an attention weight in training.
        qkv_format: `sbhd`, `bshd` or `thd`.
        attn_mask_type: One of `masks.MASK_TYPES`.
        window_size: Keys before and after the diagonal that take part; -1 means all.
        bottom_right_diagonal: Where the diagonal ends; None leaves it to the mask type.
        layer_number: Of the layer, from 1.
        attention_type: `self` or `cross`.
        softmax_scale: Of the scores; 1 over the root of the head size where None.
        softmax_type: `vanilla`, or with a logit that joins every row: `off-by-one` (zero) or
            `learnable`.
        return_max_logit: Return each head's largest logit as a second result.
        name: Goes into the roles.
        keywords: TransformerEngine's further keywords, of no effect here: `keywords.py`.
    """

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        *,
        layer_number: int | None = None,
        attention_type: str = "self",
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        return_max_logit: bool = False,
        name: str | None = None,
        **keywords: Unpack[AttentionKeywords],
    ) -> None:
        check_keywords("DotProductAttention", AttentionKeywords, keywords)
        super().__init__(name)
        sizes = (kv_channels, kv_channels) if isinstance(kv_channels, int) else kv_channels
        self.hidden_size_per_attention_head_k, self.hidden_size_per_attention_head_v = sizes
        self.num_attention_heads = num_attention_heads
        self.num_gqa_groups = num_gqa_groups or num_attention_heads
        if num_attention_heads % self.num_gqa_groups:
            raise ConfigError(
                f"{num_attention_heads} heads and {self.num_gqa_groups} GQA groups",
                expected="The number of attention heads must be divisible by the number of GQA "
                "groups",
                hint="num_gqa_groups=1 is multi-query attention",
            )
        self.attention_dropout = attention_dropout
        self.qkv_format = one_of("qkv_format", qkv_format, FORMATS)
        self.attn_mask_type = mask_type(attn_mask_type)
        rule = mask_rule(attn_mask_type, window_size, bottom_right_diagonal)
        self.window_size = (rule.left, rule.right)
        self.bottom_right_diagonal = bottom_right_diagonal
        self.layer_number = layer_number or 1
        self.attention_type = one_of("attention_type", attention_type, ("self", "cross"))
        self.softmax_scale = sizes[0] ** -0.5 if softmax_scale is None else softmax_scale
        self.softmax_type = one_of("softmax_type", softmax_type, SOFTMAX_TYPES)
        self.return_max_logit = return_max_logit
        self._make_sink()

    def _make_sink(self) -> None:
        self.softmax_offset: Tensor | None
        zeros = torch.zeros(self.num_attention_heads, device=resolve_device("cuda"))
        if self.softmax_type == "learnable":
            self.register_parameter("softmax_offset", nn.Parameter(zeros))
        else:
            made = zeros if self.softmax_type == "off-by-one" else None
            self.register_buffer("softmax_offset", made, persistent=False)

    def _check_dtypes(self, dtype: torch.dtype) -> None:
        """The sink's logits are fp32 whatever the dtype of the queries."""

    def forward(
        self,
        query_layer: Tensor | None = None,
        key_layer: Tensor | None = None,
        value_layer: Tensor | None = None,
        attention_mask: Tensor | tuple[Tensor, Tensor] | None = None,
        qkv_format: str | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        fast_zero_fill: bool = True,
        inference_params: None = None,
        pad_between_seqs: bool | None = None,
        fp8_output: bool = False,
        bf16_backward: bool = False,
        num_splits: int | None = 1,
        score_mod: None = None,
        score_mod_bprop: None = None,
        score_mod_tensors: None = None,
        score_mod_bprop_tensors: None = None,
        qkv_layer: Tensor | None = None,
        kv_layer: Tensor | None = None,
        qkv_interleave_dim: int = -3,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Applies attention.

        Args:
            query_layer: (S, B, H, D), (B, S, H, D) or (T, H, D), by `qkv_format`.
            key_layer: Likewise with G heads.
            value_layer: Likewise with G heads and the values' head size.
            attention_mask: For padded types True at padding, (B, 1, 1, Q), and a pair of such for
                cross attention; for `arbitrary` True where masked, broadcasting to (B, H, Q, K).
            qkv_format: Overrides the constructor's.
            cu_seqlens_q: Cumulative lengths (B + 1,) of the queries' sequences.
            cu_seqlens_kv: Those of the keys'.
            cu_seqlens_q_padded: Cumulative lengths with padding between the sequences.
            cu_seqlens_kv_padded: Likewise.
            max_seqlen_q: Longest sequence; from the lengths where None.
            max_seqlen_kv: Likewise.
            attn_mask_type: Overrides the constructor's.
            window_size: Overrides the constructor's.
            bottom_right_diagonal: Overrides the constructor's.
            checkpoint_core_attention: Memory only; of no effect here.
            core_attention_bias_type: One of `inputs.BIAS_TYPES`.
            core_attention_bias: Broadcasts to (B, H, Q, K).
            alibi_slopes: (H,) or (B, H); ALiBi's own where None.
            fast_zero_fill: Of no effect here.
            inference_params: None; there is no KV cache here.
            pad_between_seqs: Of no effect here; the lengths tell.
            fp8_output: With FP8 attention, the output stays quantized for the next module.
            bf16_backward: Of no effect here.
            num_splits: Of no effect here.
            score_mod: None; likewise the three that follow.
            score_mod_bprop: None.
            score_mod_tensors: None.
            score_mod_bprop_tensors: None.
            qkv_layer: Queries, keys and values in one tensor, instead of three.
            kv_layer: Keys and values in one tensor.
            qkv_interleave_dim: The dimension, -3 or -2, along which they lie.

        Returns:
            (S, B, H*Dv), (B, S, H*Dv) or (T, H*Dv); with `return_max_logit` followed by the
            largest logit of each head.
        """
        refuse(inference_params=inference_params, score_mod=score_mod)
        q, k, v = unpacked(
            qkv_layer, kv_layer, query_layer, key_layer, value_layer, qkv_interleave_dim
        )
        given = quantized_form(q) is not None
        q = self._prepare(q, num_gemms=3)
        self._force_dpa()
        k, v = k.to(q.dtype), v.to(q.dtype)
        self._check_shapes(q, k, v)
        layout = one_of("qkv_format", qkv_format or self.qkv_format, FORMATS)
        seq_q = seq_kv = None
        if layout == "thd":
            seq_q = sequences(cu_seqlens_q, cu_seqlens_q_padded, max_seqlen_q)
            seq_kv = sequences(cu_seqlens_kv, cu_seqlens_kv_padded, max_seqlen_kv)
        tokens = q.shape[0]
        qh, kh, vh = (
            to_heads_first(x, layout, s) for x, s in ((q, seq_q), (k, seq_kv), (v, seq_kv))
        )
        rule = self._rule(attn_mask_type, window_size, bottom_right_diagonal)
        padding = None
        if rule.padded:
            lengths = (cu_seqlens_q, cu_seqlens_kv)
            padding = padding_of(attention_mask, lengths, qh.shape[2], kh.shape[2])
        bias = attention_bias(
            core_attention_bias_type,
            core_attention_bias,
            alibi_slopes,
            rule,
            qh,
            kh,
            scale=self.softmax_scale,
            padding=padding,
        )
        mask, causal = the_mask(rule, attention_mask, qh, kh, padding)
        out = self._attend(qh, kh, vh, mask, causal, bias, given)
        context = from_heads_first(out, layout, seq_q, tokens)
        context = self._quantize_output(context, fp8_output)
        if not self.return_max_logit:
            return context
        return context, largest_logits(qh, kh, self.softmax_scale, mask, causal, bias)

    def _rule(
        self, kind: str | None, window: tuple[int, int] | None, bottom_right: bool | None
    ) -> MaskRule:
        kind = self.attn_mask_type if kind is None else mask_type(kind)
        if window is None and kind == self.attn_mask_type:
            window = self.window_size
        if bottom_right is None:
            bottom_right = self.bottom_right_diagonal
        return mask_rule(kind, window, bottom_right)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        causal: bool,
        bias: Tensor | None,
        given: bool,
    ) -> Tensor:
        options: dict[str, Any] = {
            "scale": self.softmax_scale,
            "bias": bias,
            "dropout": self.attention_dropout if self.training else 0.0,
            "sink": self.softmax_offset,
        }
        quantizers = self._attention_quantizers()
        if quantizers is None:
            return attend(q, k, v, mask=mask, causal=causal, **options)
        if causal:
            rule = mask_rule("causal", None, None)
            mask = attention_mask(rule, q.shape[2], k.shape[2], q.device)
        with torch.autocast(q.device.type, enabled=False):
            return attend_quantized(
                q,
                k,
                v,
                quantizers,
                mask=mask,
                quantize_qkv=not given,
                quantize_dqkv=not given,
                **options,
            )

    def _quantize_output(self, context: Tensor, fp8_output: bool) -> Tensor:
        quantizers = self._attention_quantizers()
        if quantizers is None:
            return context
        grad = None if quantizers.blocked else quantizers.do
        return fake_quantize(context, quantizers.o, grad, carry=fp8_output)

    def _check_shapes(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        expected = (
            (self.num_attention_heads, self.hidden_size_per_attention_head_k),
            (self.num_gqa_groups, self.hidden_size_per_attention_head_k),
            (self.num_gqa_groups, self.hidden_size_per_attention_head_v),
        )
        for what, x, (heads, size) in zip(
            ("queries", "keys", "values"), (q, k, v), expected, strict=True
        ):
            if tuple(x.shape[-2:]) != (heads, size):
                raise ConfigError(
                    f"{what} of shape {tuple(x.shape)} in {self.name!r}",
                    expected=f"{heads} heads of size {size} in the last two dimensions",
                    hint="num_attention_heads, num_gqa_groups and kv_channels set them",
                )
