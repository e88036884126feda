"""MultiheadAttention: projections around attention, and the roles of the tensors between them."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from qrole.autocasting import current_autocast
from qrole.errors import ConfigError
from qrole.modules.attention.boundaries import Boundaries, boundaries_of, name_readers
from qrole.modules.attention.dot_product import DotProductAttention
from qrole.modules.attention.fp8 import BACKWARD_INDEX
from qrole.modules.attention.inputs import one_of, refuse
from qrole.modules.attention.rope import apply_rotary_pos_emb
from qrole.modules.base import QuantizedModule, default_name
from qrole.modules.fake_quantize import fake_quantize
from qrole.modules.keywords import MultiheadAttentionKeywords, check_keywords
from qrole.modules.layernorm_linear import LayerNormLinear
from qrole.modules.linear import Linear, LinearModule
from qrole.modules.norm import LayerNorm, RMSNorm
from qrole.modules.ops.norm import L2Normalization
from qrole.modules.parameters import Init
from qrole.modules.prequantized import attach_quantized, quantized_form

__all__ = ["MultiheadAttention"]

_QK_NORMS = ("L2Normalization", "RMSNorm", "LayerNorm")


class MultiheadAttention(nn.Module):
    """Query, key and value projections, attention, output projection.

    It has no slots of its own. It names the readers of the tensors that its children hand to each
    other (`output_quantizer_role`, `grad_input_quantizer_role`) where the recipe has them quantized
    (`fp8_mha`), and takes the names back where it has not.

    Args:
        hidden_size: Size of input and output rows.
        num_attention_heads: Heads of the queries.
        kv_channels: Head size; hidden size over heads where None.
        attention_dropout: Probability of dropping an attention weight in training.
        layernorm_epsilon: Added to the variance of the input norm.
        init_method: Fills the projections' weights; normal with deviation 0.023 where None.
        output_layer_init_method: Likewise for the output projection.
        layer_number: Of the layer, from 1.
        attn_mask_type: One of `masks.MASK_TYPES`.
        window_size: Keys before and after the diagonal that take part; -1 means all.
        bottom_right_diagonal: Where the diagonal ends; None leaves it to the mask type.
        num_gqa_groups: Heads of keys and values; as many as the queries' where None.
        params_dtype: Dtype of the parameters; torch's default where None.
        return_bias: Return the output projection's bias instead of adding it.
        return_layernorm_output: Return the input norm's output as a last result.
        input_layernorm: Normalize the input.
        attention_type: `self`, or `cross` with keys and values from `encoder_output`.
        fuse_qkv_params: One parameter for query, key and value instead of three.
        zero_centered_gamma: The norm's gamma is stored as its difference to 1.
        qkv_weight_interleaved: The fused weight holds query, key and value head by head instead of
            one after the other; False without `fuse_qkv_params`.
        rotary_pos_interleaved: Rotary pairs are neighbours instead of halves.
        bias: Learn biases.
        normalization: `LayerNorm` or `RMSNorm`.
        device: Of the parameters; `cuda` is the default device on a machine without CUDA.
        qkv_format: `sbhd`, `bshd` or `thd`.
        name: Goes into the roles; children add their own part to it. Without a name, each child is
            named `Layer_N` on its own, as in TransformerEngine.
        qk_norm_type: Norm of each query and key head: L2Normalization, RMSNorm, LayerNorm or None.
        qk_norm_eps: Its epsilon.
        qk_norm_before_rope: It comes before the rotary embedding.
        softmax_type: As in `DotProductAttention`.
        keywords: TransformerEngine's further keywords, of no effect here: `keywords.py`.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        kv_channels: int | None = None,
        attention_dropout: float = 0.1,
        layernorm_epsilon: float = 1e-5,
        init_method: Init | None = None,
        output_layer_init_method: Init | None = None,
        layer_number: int | None = None,
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        *,
        num_gqa_groups: int | None = None,
        params_dtype: torch.dtype | None = None,
        return_bias: bool = False,
        return_layernorm_output: bool = False,
        input_layernorm: bool = False,
        attention_type: str = "self",
        fuse_qkv_params: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        rotary_pos_interleaved: bool = False,
        bias: bool = True,
        normalization: str = "LayerNorm",
        device: torch.device | str = "cuda",
        qkv_format: str = "sbhd",
        name: str | None = None,
        qk_norm_type: str | None = None,
        qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False,
        softmax_type: str = "vanilla",
        **keywords: Unpack[MultiheadAttentionKeywords],
    ) -> None:
        check_keywords("MultiheadAttention", MultiheadAttentionKeywords, keywords)
        super().__init__()
        self.name = default_name(name)
        self.attention_type = one_of("attention_type", attention_type, ("self", "cross"))
        self.attn_mask_type = attn_mask_type
        self.window_size = window_size
        self.bottom_right_diagonal = bottom_right_diagonal
        self.input_layernorm = input_layernorm
        self.return_bias = return_bias
        self.return_layernorm_output = return_layernorm_output
        self.qkv_format = qkv_format
        self.qkv_weight_interleaved = qkv_weight_interleaved and fuse_qkv_params
        self.rotary_pos_interleaved = rotary_pos_interleaved
        self.qk_norm_before_rope = qk_norm_before_rope
        self.num_attention_heads = num_attention_heads
        self.num_gqa_groups = num_gqa_groups or num_attention_heads
        self.head_size = kv_channels or hidden_size // num_attention_heads
        self.q_norm, self.k_norm = _qk_norms(
            qk_norm_type, self.head_size, qk_norm_eps, params_dtype, device
        )

        def child(suffix: str) -> str | None:
            return None if name is None else f"{name}.{suffix}"

        linear: dict[str, Any] = {"params_dtype": params_dtype, "device": device, "bias": bias}
        normed: dict[str, Any] = {
            "eps": layernorm_epsilon,
            "normalization": normalization,
            "zero_centered_gamma": zero_centered_gamma,
            "return_layernorm_output": return_layernorm_output,
        }
        q_rows = self.head_size * num_attention_heads
        kv_rows = self.head_size * self.num_gqa_groups

        def first(rows: int, split: Any, with_norm: str, without: str | None) -> LinearModule:
            """The projection that reads the input, with the input's norm or without."""
            options = {**linear, "init_method": init_method, "parameters_split": split}
            if input_layernorm:
                return LayerNormLinear(
                    hidden_size, rows, name=child(with_norm), **options, **normed
                )
            named = None if without is None else child(without)
            return Linear(hidden_size, rows, name=named, **options)

        if self.attention_type == "self":
            split = {"query": q_rows, "key": kv_rows, "value": kv_rows}
            rows = q_rows + 2 * kv_rows
            projection = first(
                rows, None if fuse_qkv_params else split, "layernorm_linear_qkv", "linear_qkv"
            )
            self.add_module("layernorm_qkv" if input_layernorm else "qkv", projection)
        else:
            named_q = ("query",) if input_layernorm and not fuse_qkv_params else None
            projection = first(q_rows, named_q, "layernorm_linear_q", None)
            self.add_module("layernorm_query" if input_layernorm else "query_layer", projection)
            self.key_value = Linear(
                hidden_size,
                2 * kv_rows,
                init_method=init_method,
                parameters_split=None if fuse_qkv_params else ("key", "value"),
                name=child("linear_kv"),
                **linear,
            )
        self.core_attention = DotProductAttention(
            num_attention_heads,
            self.head_size,
            num_gqa_groups=self.num_gqa_groups,
            attention_dropout=attention_dropout,
            qkv_format=qkv_format,
            layer_number=layer_number,
            attention_type=attention_type,
            softmax_type=softmax_type,
            name=child("core_attention"),
        )
        self.proj = Linear(
            q_rows,
            hidden_size,
            init_method=output_layer_init_method,
            return_bias=return_bias,
            name=child("proj"),
            **linear,
        )

    @property
    def first_projection(self) -> LinearModule:
        """The projection that makes the queries: of all three, or of the queries alone."""
        kind = "qkv" if self.attention_type == "self" else "query"
        name = f"layernorm_{kind}" if self.input_layernorm else kind
        found = self.get_submodule("query_layer" if name == "query" else name)
        assert isinstance(found, LinearModule), "made in __init__"
        return found

    @property
    def _projections(self) -> list[QuantizedModule]:
        first: list[QuantizedModule] = [self.first_projection]
        return first if self.attention_type == "self" else [*first, self.key_value]

    def _settle_boundaries(self, device: torch.device, rotary: bool) -> Boundaries:
        """Which boundary tensors the recipe has quantized; names their readers on the way.

        A CustomRecipe with `fp8_mha` gets every role before attention builds its quantizers, and
        keeps them where the QKV quantizer then rules a quantized tensor out.
        """
        around = (self._projections, self.core_attention, self.proj)
        state = current_autocast()
        if not state.enabled:
            name_readers(Boundaries(), *around)
            return Boundaries()
        recipe = state.get_recipe()
        current, blocked = recipe.float8_current_scaling(), recipe.mxfp8()
        wired = recipe.custom() and recipe.fp8_mha
        if wired:
            name_readers(Boundaries(not rotary, True, True), *around)
            current, blocked = self.core_attention.get_qkv_quantization_capabilities(device)
        boundaries = boundaries_of(recipe, rotary=rotary, current=current, blocked=blocked)
        if not wired:
            name_readers(boundaries, *around)
        return boundaries

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | tuple[Tensor, Tensor] | None = None,
        encoder_output: Tensor | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
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
    ) -> Tensor | tuple[Tensor | None, ...]:
        """Applies attention.

        Args:
            hidden_states: (S, B, hidden), (B, S, hidden) or (T, hidden), by `qkv_format`.
            attention_mask: As in `DotProductAttention`; likewise all that are not named here.
            encoder_output: What cross attention attends to; laid out as `hidden_states`.
            attn_mask_type: Overrides the constructor's; likewise the two that follow.
            window_size: See there.
            bottom_right_diagonal: See there.
            is_first_microbatch: As in `Linear`.
            checkpoint_core_attention: Memory only; of no effect here.
            inference_params: None; there is no KV cache here.
            rotary_pos_emb: Angles (S, 1, 1, D), or a pair for queries and keys.
            core_attention_bias_type: See there.
            core_attention_bias: See there.
            alibi_slopes: See there.
            cu_seqlens_q: See there.
            cu_seqlens_kv: See there.
            cu_seqlens_q_padded: See there.
            cu_seqlens_kv_padded: See there.
            max_seqlen_q: See there.
            max_seqlen_kv: See there.
            fast_zero_fill: Of no effect here.
            pad_between_seqs: Of no effect here.

        Returns:
            The output, laid out as `hidden_states`; followed by the bias with `return_bias`, and by
            the norm's output with `input_layernorm` and `return_layernorm_output`.
        """
        refuse(inference_params=inference_params)
        boundaries = self._settle_boundaries(hidden_states.device, rotary_pos_emb is not None)
        heads, normed = self._project(
            hidden_states, encoder_output, is_first_microbatch, boundaries.qkv_output
        )
        q, k, v = heads
        q, k = self._position(q, k, rotary_pos_emb, cu_seqlens_q, cu_seqlens_kv)
        context = self.core_attention(
            q,
            k,
            v,
            attention_mask=attention_mask,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_kv=cu_seqlens_kv,
            cu_seqlens_q_padded=cu_seqlens_q_padded,
            cu_seqlens_kv_padded=cu_seqlens_kv_padded,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_kv=max_seqlen_kv,
            attn_mask_type=attn_mask_type or self.attn_mask_type,
            window_size=self.window_size if window_size is None else window_size,
            bottom_right_diagonal=(
                self.bottom_right_diagonal
                if bottom_right_diagonal is None
                else bottom_right_diagonal
            ),
            core_attention_bias_type=core_attention_bias_type,
            core_attention_bias=core_attention_bias,
            alibi_slopes=alibi_slopes,
            fp8_output=boundaries.dpa_output,
        )
        projected = self.proj(
            context, is_first_microbatch=is_first_microbatch, fp8_grad=boundaries.proj_grad
        )
        results = projected if self.return_bias else (projected,)
        if self.input_layernorm and self.return_layernorm_output:
            results += (normed,)
        return results if len(results) > 1 else results[0]

    def _project(
        self, x: Tensor, encoded: Tensor | None, first: bool | None, quantized: bool
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
        """Queries, keys and values (..., heads, head size), and the norm's output if wanted."""
        result = self.first_projection(x, is_first_microbatch=first, fp8_output=quantized)
        normed = None
        if self.input_layernorm and self.return_layernorm_output:
            result, normed = result
        result = self._hand_over(result, quantized)
        heads = self.num_attention_heads // self.num_gqa_groups
        if self.attention_type == "self":
            q, k, v = self._split(result, (heads, 1, 1))
            return (q, k, v), normed
        if encoded is None:
            raise ConfigError(
                f"cross attention {self.name!r} without encoder_output",
                expected="encoder_output, what the queries attend to",
                hint="pass encoder_output=, or build with attention_type='self'",
            )
        mixed = self.key_value(encoded, is_first_microbatch=first, fp8_output=quantized)
        k, v = self._split(self._hand_over(mixed, quantized), (1, 1))
        return (self._split(result, (heads,))[0], k, v), normed

    def _hand_over(self, mixed: Tensor, quantized: bool) -> Tensor:
        """Has the gradient quantized by attention's slot, as one tensor, where the tensor was."""
        if not quantized or quantized_form(mixed) is None:
            return mixed
        self.core_attention.get_qkv_quantization_capabilities(mixed.device)
        quantizer = self.core_attention.quantizers["scaling_bwd"][BACKWARD_INDEX["dqkv"]]
        return fake_quantize(mixed, None, quantizer, carry=True)

    def _split(self, mixed: Tensor, parts: tuple[int, ...]) -> tuple[Tensor, ...]:
        """A projection's rows into tensors of `parts` heads per group each."""
        form, groups = quantized_form(mixed), self.num_gqa_groups
        if self.qkv_weight_interleaved:
            grouped = torch.unflatten(mixed, -1, (groups, sum(parts), self.head_size))
            pieces = [piece.flatten(-3, -2) for piece in torch.split(grouped, list(parts), dim=-2)]
        else:
            sizes = [part * groups * self.head_size for part in parts]
            split = torch.split(mixed, sizes, dim=-1)
            pieces = [torch.unflatten(piece, -1, (-1, self.head_size)) for piece in split]
        if form is not None:
            pieces = [attach_quantized(piece, form) for piece in pieces]
        return tuple(pieces)

    def _position(
        self,
        q: Tensor,
        k: Tensor,
        rotary: Tensor | tuple[Tensor, Tensor] | None,
        lengths_q: Tensor | None,
        lengths_k: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Norm of queries and keys, and the rotary embedding, in their order."""
        if self.qk_norm_before_rope:
            q, k = self._norm(q, k)
        if rotary is not None:
            for_q, for_k = rotary if isinstance(rotary, tuple) else (rotary, rotary)
            options = (self.qkv_format, self.rotary_pos_interleaved)
            q = apply_rotary_pos_emb(q, for_q, *options, lengths_q)
            k = apply_rotary_pos_emb(k, for_k, *options, lengths_k)
        return (q, k) if self.qk_norm_before_rope else self._norm(q, k)

    def _norm(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.q_norm is None or self.k_norm is None:
            return q, k
        return self.q_norm(q), self.k_norm(k)


def _qk_norms(
    kind: str | None,
    size: int,
    eps: float,
    dtype: torch.dtype | None,
    device: torch.device | str,
) -> tuple[nn.Module | None, nn.Module | None]:
    if kind is None:
        return None, None
    one_of("qk_norm_type", kind, _QK_NORMS)
    if kind == "L2Normalization":
        shared = L2Normalization(eps=eps)
        return shared, shared
    made = LayerNorm if kind == "LayerNorm" else RMSNorm
    return tuple(made(size, eps=eps, params_dtype=dtype, device=device) for _ in range(2))  # type: ignore[return-value]
