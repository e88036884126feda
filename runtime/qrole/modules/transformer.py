"""TransformerLayer: attention, cross attention for decoders, and an MLP, with their residuals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qrole.errors import ConfigError
from qrole.modules.attention import MultiheadAttention
from qrole.modules.attention.inputs import one_of
from qrole.modules.base import default_name
from qrole.modules.keywords import TransformerLayerKeywords, check_keywords
from qrole.modules.layernorm_mlp import LayerNormMLP
from qrole.modules.norm import LayerNorm, RMSNorm
from qrole.modules.normalization import check_normalization
from qrole.modules.parameters import Init

__all__ = ["DropPath", "TransformerLayer"]


class DropPath(nn.Module):
    """Drops a sample's whole branch in training with probability `drop_prob`."""

    def __init__(self, drop_prob: float = 0.0) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, hidden_state: Tensor) -> Tensor:
        """Scales what is kept by `1 / (1 - drop_prob)`; samples lie along the first dimension."""
        if self.drop_prob == 0.0 or not self.training:
            return hidden_state
        keep = 1 - self.drop_prob
        shape = (hidden_state.shape[0],) + (1,) * (hidden_state.dim() - 1)
        return hidden_state / keep * hidden_state.new_empty(shape).bernoulli_(keep)


class TransformerLayer(nn.Module):
    """One layer of a transformer. It has no slots of its own.

    Args:
        hidden_size: Size of input and output rows.
        ffn_hidden_size: Size of the rows within the MLP.
        num_attention_heads: Heads of the queries.
        num_gqa_groups: Heads of keys and values; as many as the queries' where None.
        layernorm_epsilon: Added to the variance of every norm.
        hidden_dropout: Probability of dropping an element behind attention and MLP in training.
        attention_dropout: Probability of dropping an attention weight in training.
        init_method: Fills the weights of QKV and fc1; normal with deviation 0.023 where None.
        output_layer_init_method: Likewise for the output projection and fc2.
        layer_number: Of the layer, from 1.
        kv_channels: Head size; hidden size over heads where None.
        self_attn_mask_type: One of `attention.masks.MASK_TYPES`.
        window_size: Keys before and after the diagonal that take part; -1 means all.
        bottom_right_diagonal: Where the diagonal ends; None leaves it to the mask type.
        enc_dec_attn_mask_type: The same three for cross attention.
        enc_dec_bottom_right_diagonal: See there.
        enc_dec_window_size: See there.
        params_dtype: Dtype of the parameters; torch's default where None.
        apply_residual_connection_post_layernorm: Residuals start behind the norms.
        output_layernorm: Normalize the output instead of attention's input.
        parallel_attention_mlp: Attention and MLP read the same input.
        layer_type: `encoder`, or `decoder` with cross attention.
        drop_path_rate: Probability of dropping a sample's whole branch in training.
        fuse_qkv_params: As in `MultiheadAttention`.
        rotary_pos_interleaved: As in `MultiheadAttention`.
        zero_centered_gamma: Norms' gammas are stored as their difference to 1.
        qkv_weight_interleaved: As in `MultiheadAttention`.
        bias: Learn biases.
        activation: Of the MLP; one of `activation.ACTIVATIONS`.
        activation_params: Its parameters.
        normalization: `LayerNorm` or `RMSNorm`.
        device: Of the parameters; `cuda` is the default device on a machine without CUDA.
        attn_input_format: `sbhd`, `bshd` or `thd`.
        name: Goes into the roles; children add their own part to it.
        qk_norm_type: As in `MultiheadAttention`.
        qk_norm_eps: As in `MultiheadAttention`.
        qk_norm_before_rope: As in `MultiheadAttention`.
        softmax_type: As in `DotProductAttention`.
        keywords: TransformerEngine's further keywords, of no effect here: `keywords.py`.
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        num_attention_heads: int,
        num_gqa_groups: int | None = None,
        layernorm_epsilon: float = 1e-5,
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        init_method: Init | None = None,
        output_layer_init_method: Init | None = None,
        layer_number: int | None = None,
        kv_channels: int | None = None,
        self_attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        enc_dec_attn_mask_type: str = "no_mask",
        enc_dec_bottom_right_diagonal: bool | None = None,
        enc_dec_window_size: tuple[int, int] | None = None,
        *,
        params_dtype: torch.dtype | None = None,
        apply_residual_connection_post_layernorm: bool = False,
        output_layernorm: bool = False,
        parallel_attention_mlp: bool = False,
        layer_type: str = "encoder",
        drop_path_rate: float = 0.0,
        fuse_qkv_params: bool = False,
        rotary_pos_interleaved: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        bias: bool = True,
        activation: str = "gelu",
        activation_params: Mapping[str, float] | None = None,
        normalization: str = "LayerNorm",
        device: torch.device | str = "cuda",
        attn_input_format: str = "sbhd",
        name: str | None = None,
        qk_norm_type: str | None = None,
        qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False,
        softmax_type: str = "vanilla",
        **keywords: Unpack[TransformerLayerKeywords],
    ) -> None:
        check_keywords("TransformerLayer", TransformerLayerKeywords, keywords)
        super().__init__()
        self.name = default_name(name)
        self.layer_type = one_of("layer_type", layer_type, ("encoder", "decoder"))
        post_norm = apply_residual_connection_post_layernorm
        if parallel_attention_mlp and (layer_type == "decoder" or post_norm or output_layernorm):
            raise ConfigError(
                f"parallel_attention_mlp=True with layer_type={layer_type!r}, "
                f"apply_residual_connection_post_layernorm={post_norm}, "
                f"output_layernorm={output_layernorm}",
                expected="an encoder with neither of the two",
                hint="switch parallel_attention_mlp off",
            )
        self.self_attn_mask_type = self_attn_mask_type
        self.window_size = window_size
        self.bottom_right_diagonal = bottom_right_diagonal
        self.enc_dec_attn_mask_type = enc_dec_attn_mask_type
        self.enc_dec_window_size = enc_dec_window_size
        self.enc_dec_bottom_right_diagonal = enc_dec_bottom_right_diagonal
        self.hidden_dropout = hidden_dropout
        self.output_layernorm = output_layernorm
        self.parallel_attention_mlp = parallel_attention_mlp
        self.apply_residual_connection_post_layernorm = post_norm
        shared: dict[str, Any] = {
            "init_method": init_method,
            "output_layer_init_method": output_layer_init_method,
            "params_dtype": params_dtype,
            "return_layernorm_output": post_norm,
            "zero_centered_gamma": zero_centered_gamma,
            "bias": bias,
            "return_bias": not parallel_attention_mlp,
            "normalization": check_normalization(normalization),
            "device": device,
        }

        def attention(kind: str, with_norm: bool, suffix: str) -> MultiheadAttention:
            return MultiheadAttention(
                hidden_size,
                num_attention_heads,
                kv_channels,
                attention_dropout,
                layernorm_epsilon,
                layer_number=layer_number,
                num_gqa_groups=num_gqa_groups,
                input_layernorm=with_norm,
                attention_type=kind,
                attn_mask_type=enc_dec_attn_mask_type if kind == "cross" else "causal",
                fuse_qkv_params=fuse_qkv_params,
                qkv_weight_interleaved=qkv_weight_interleaved,
                rotary_pos_interleaved=rotary_pos_interleaved,
                qkv_format=attn_input_format,
                name=f"{self.name}.{suffix}",
                qk_norm_type=qk_norm_type,
                qk_norm_eps=qk_norm_eps,
                qk_norm_before_rope=qk_norm_before_rope,
                softmax_type=softmax_type,
                **shared,
            )

        self.self_attention = attention("self", not output_layernorm, "self_attention")
        if layer_type == "decoder":
            self.inter_attention = attention("cross", True, "inter_attention")
        self.layernorm_mlp = LayerNormMLP(
            hidden_size,
            ffn_hidden_size,
            eps=layernorm_epsilon,
            activation=activation,
            activation_params=activation_params,
            name=f"{self.name}.layernorm_mlp",
            **shared,
        )
        self.drop_path = DropPath(drop_path_rate)
        if output_layernorm:
            norm = LayerNorm if normalization == "LayerNorm" else RMSNorm
            self.layernorm = norm(
                hidden_size,
                eps=layernorm_epsilon,
                dtype=params_dtype,
                zero_centered_gamma=zero_centered_gamma,
                device=device,
            )

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        self_attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        encoder_output: Tensor | None = None,
        enc_dec_attn_mask: Tensor | tuple[Tensor, Tensor] | None = None,
        enc_dec_attn_mask_type: str | None = None,
        enc_dec_window_size: tuple[int, int] | None = None,
        enc_dec_bottom_right_diagonal: bool | None = None,
        is_first_microbatch: bool | None = None,
        checkpoint_core_attention: bool = False,
        inference_params: None = None,
        rotary_pos_emb: Tensor | tuple[Tensor, Tensor] | None = None,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        fast_zero_fill: bool = True,
        pad_between_seqs: bool | None = None,
    ) -> Tensor:
        """Applies the layer.

        Args:
            hidden_states: (S, B, hidden), (B, S, hidden) or (T, hidden), by `attn_input_format`.
            attention_mask: Of self attention; see `DotProductAttention`, also for all arguments
                that are not named here.
            self_attn_mask_type: Overrides the constructor's; likewise the two that follow.
            window_size: See there.
            bottom_right_diagonal: See there.
            encoder_output: What a decoder's cross attention attends to.
            enc_dec_attn_mask: Of cross attention.
            enc_dec_attn_mask_type: Overrides the constructor's; likewise the two that follow.
            enc_dec_window_size: See there.
            enc_dec_bottom_right_diagonal: See there.
            is_first_microbatch: As in `Linear`.
            checkpoint_core_attention: Memory only; of no effect here.
            inference_params: None; there is no KV cache here.
            rotary_pos_emb: Angles (S, 1, 1, D), or a pair for queries and keys.
            core_attention_bias_type: See there.
            core_attention_bias: See there.
            alibi_slopes: See there.
            cu_seqlens_q: See there.
            cu_seqlens_kv: See there; of cross attention.
            cu_seqlens_q_padded: See there.
            cu_seqlens_kv_padded: See there; of cross attention.
            max_seqlen_q: See there.
            max_seqlen_kv: See there; of cross attention.
            fast_zero_fill: Of no effect here.
            pad_between_seqs: Of no effect here.

        Returns:
            Laid out as `hidden_states`.
        """
        kind = hidden_states.device.type
        if torch.is_autocast_enabled(kind):
            hidden_states = hidden_states.to(torch.get_autocast_dtype(kind))
        common: dict[str, Any] = {
            "is_first_microbatch": is_first_microbatch,
            "inference_params": inference_params,
            "rotary_pos_emb": rotary_pos_emb,
            "core_attention_bias_type": core_attention_bias_type,
            "core_attention_bias": core_attention_bias,
            "alibi_slopes": alibi_slopes,
            "cu_seqlens_q": cu_seqlens_q,
            "cu_seqlens_q_padded": cu_seqlens_q_padded,
            "max_seqlen_q": max_seqlen_q,
        }
        attended = self.self_attention(
            hidden_states,
            attention_mask=attention_mask,
            attn_mask_type=self_attn_mask_type or self.self_attn_mask_type,
            window_size=self.window_size if window_size is None else window_size,
            bottom_right_diagonal=_either(bottom_right_diagonal, self.bottom_right_diagonal),
            cu_seqlens_kv=cu_seqlens_q,
            cu_seqlens_kv_padded=cu_seqlens_q_padded,
            max_seqlen_kv=max_seqlen_q,
            **common,
        )
        if self.parallel_attention_mlp:
            mlp = self.layernorm_mlp(hidden_states, is_first_microbatch=is_first_microbatch)
            return self._add(attended + mlp, None, hidden_states)
        hidden_states = self._residual(attended, hidden_states, not self.output_layernorm)
        if self.layer_type == "decoder":
            crossed = self.inter_attention(
                hidden_states,
                attention_mask=enc_dec_attn_mask,
                encoder_output=encoder_output,
                attn_mask_type=enc_dec_attn_mask_type or self.enc_dec_attn_mask_type,
                window_size=_either(enc_dec_window_size, self.enc_dec_window_size),
                bottom_right_diagonal=_either(
                    enc_dec_bottom_right_diagonal, self.enc_dec_bottom_right_diagonal
                ),
                cu_seqlens_kv=cu_seqlens_kv,
                cu_seqlens_kv_padded=cu_seqlens_kv_padded,
                max_seqlen_kv=max_seqlen_kv,
                **common,
            )
            hidden_states = self._residual(crossed, hidden_states, True, drop_path=False)
        mlp = self.layernorm_mlp(hidden_states, is_first_microbatch=is_first_microbatch)
        output = self._residual(mlp, hidden_states, True)
        return self.layernorm(output) if self.output_layernorm else output

    def _residual(
        self,
        results: tuple[Tensor, ...],
        x: Tensor,
        normed: bool,
        drop_path: bool = True,
    ) -> Tensor:
        """A block's output with its bias, added to its input or to its norm's output.

        Args:
            results: Output, bias, and the norm's output where residuals start behind norms.
            x: The block's input.
            normed: The block has a norm.
            drop_path: The whole branch may be dropped.
        """
        branch, bias, *norm = results
        start = norm[0] if self.apply_residual_connection_post_layernorm and normed else x
        return self._add(branch, bias, start, drop_path)

    def _add(
        self, branch: Tensor, bias: Tensor | None, start: Tensor, drop_path: bool = True
    ) -> Tensor:
        branch = branch if bias is None else branch + bias
        branch = F.dropout(branch, self.hidden_dropout, self.training)
        return start + (self.drop_path(branch) if drop_path else branch)


def _either(given: Any, default: Any) -> Any:
    return default if given is None else given
