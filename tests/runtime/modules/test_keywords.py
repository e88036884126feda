"""The constructors take TransformerEngine's keywords, and no others."""

from __future__ import annotations

import inspect

import pytest
import torch

import qrole.modules as M
from qrole.errors import UnknownNameError
from qrole.modules import keywords, ops

TENSOR_PARALLEL = "sequence_parallel tp_group tp_size get_rng_state_tracker"
OVERLAP = "ub_overlap_ag ub_overlap_rs ub_overlap_rs_dgrad ub_bulk_dgrad ub_bulk_wgrad"

#: Every constructor keyword of TransformerEngine 2.20's modules.
EXPECTED = {
    M.Linear: f"in_features out_features {TENSOR_PARALLEL} {OVERLAP} fuse_wgrad_accumulation "
    "rng_tracker_name init_method bias return_bias params_dtype parallel_mode parameters_split "
    "device ub_name delay_wgrad_compute symmetric_ar_type save_original_input name",
    M.LayerNormLinear: f"in_features out_features eps {TENSOR_PARALLEL} {OVERLAP} "
    "fuse_wgrad_accumulation init_method bias normalization return_bias params_dtype parallel_mode "
    "return_layernorm_output return_layernorm_output_gathered parameters_split zero_centered_gamma "
    "device ub_name delay_wgrad_compute symmetric_ar_type name",
    M.LayerNormMLP: f"hidden_size ffn_hidden_size eps {TENSOR_PARALLEL} {OVERLAP} return_bias "
    "init_method bias normalization activation activation_params output_layer_init_method "
    "fuse_wgrad_accumulation params_dtype return_layernorm_output return_layernorm_output_gathered "
    "seq_length micro_batch_size set_parallel_mode zero_centered_gamma device name "
    "delay_wgrad_compute symmetric_ar_type checkpoint",
    M.GroupedLinear: f"num_gemms in_features out_features {TENSOR_PARALLEL} "
    "fuse_wgrad_accumulation rng_tracker_name init_method bias return_bias params_dtype "
    "parallel_mode device ub_overlap_rs ub_overlap_ag ub_name delay_wgrad_compute "
    "save_original_input single_grouped_weight single_grouped_bias name use_grouped_tensor",
    M.DotProductAttention: f"num_attention_heads kv_channels num_gqa_groups attention_dropout "
    f"qkv_format attn_mask_type window_size bottom_right_diagonal {TENSOR_PARALLEL} layer_number "
    "attention_type cp_group cp_global_ranks cp_stream cp_comm_type softmax_scale softmax_type "
    "return_max_logit name",
    M.MultiheadAttention: f"hidden_size num_attention_heads kv_channels attention_dropout "
    "layernorm_epsilon init_method output_layer_init_method layer_number attn_mask_type "
    f"window_size bottom_right_diagonal {TENSOR_PARALLEL} {OVERLAP} num_gqa_groups "
    "fuse_wgrad_accumulation params_dtype return_bias return_layernorm_output input_layernorm "
    "attention_type set_parallel_mode fuse_qkv_params zero_centered_gamma qkv_weight_interleaved "
    "rotary_pos_interleaved bias normalization device qkv_format name qk_norm_type qk_norm_eps "
    "qk_norm_before_rope seq_length micro_batch_size softmax_type",
    M.TransformerLayer: f"hidden_size ffn_hidden_size num_attention_heads num_gqa_groups "
    "layernorm_epsilon hidden_dropout attention_dropout init_method output_layer_init_method "
    "layer_number kv_channels self_attn_mask_type window_size bottom_right_diagonal "
    "enc_dec_attn_mask_type enc_dec_bottom_right_diagonal enc_dec_window_size "
    f"{TENSOR_PARALLEL} {OVERLAP} params_dtype fuse_wgrad_accumulation seq_length micro_batch_size "
    "apply_residual_connection_post_layernorm output_layernorm parallel_attention_mlp layer_type "
    "drop_path_rate set_parallel_mode fuse_qkv_params rotary_pos_interleaved zero_centered_gamma "
    "qkv_weight_interleaved ub_tp_comm_overlap bias activation activation_params normalization "
    "device attn_input_format name qk_norm_type qk_norm_eps qk_norm_before_rope softmax_type",
    M.LayerNorm: "normalized_shape eps sequence_parallel params_dtype zero_centered_gamma "
    "hidden_size device dtype sm_margin",
    M.RMSNorm: "normalized_shape eps sequence_parallel params_dtype zero_centered_gamma "
    "hidden_size device dtype sm_margin",
    M.Fp8Padding: "num_gemms align_size",
    M.Fp8Unpadding: "num_gemms align_size",
    ops.Linear: "in_features out_features bias device dtype tensor_parallel_mode "
    "tensor_parallel_group sequence_parallel rng_state_tracker_function accumulate_into_main_grad",
    ops.BasicLinear: "in_features out_features device dtype tensor_parallel_mode "
    "tensor_parallel_group sequence_parallel rng_state_tracker_function "
    "accumulate_into_main_grad userbuffers_options",
    ops.GroupedLinear: "num_groups in_features out_features bias device dtype "
    "rng_state_tracker_function accumulate_into_main_grad single_grouped_weight "
    "single_grouped_bias delay_wgrad_compute scale_bias",
    ops.Quantize: "forward backward",
    ops.Bias: "size device dtype tensor_parallel tensor_parallel_group",
    ops.LayerNorm: "normalized_shape eps device dtype zero_centered_gamma sm_margin",
    ops.RMSNorm: "normalized_shape eps device dtype zero_centered_gamma sm_margin",
    ops.L2Normalization: "eps seq_length micro_batch_size",
    ops.GELU: "cache_quantized_input",
    ops.SwiGLU: "cache_quantized_input glu_interleave_size",
    ops.ClampedSwiGLU: "limit alpha glu_linear_offset cache_quantized_input glu_interleave_size",
    ops.SiTUGLU: "beta1 beta2 cache_quantized_input glu_interleave_size",
    ops.ScaledSwiGLU: "glu_interleave_size activation_recompute_in_mlp",
    ops.Dropout: "p",
    ops.Reshape: "shape",
    ops.ConstantScale: "scale",
    ops.AddExtraInput: "in_place",
    ops.MakeExtraOutput: "in_place",
}


def _accepted(kind: type) -> set[str]:
    """Keywords that the constructor names, and those of the table's row it is annotated with."""
    accepted = set()
    for name, parameter in list(inspect.signature(kind.__init__).parameters.items())[1:]:
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            accepted.add(name)
            continue
        row = parameter.annotation.removeprefix("Unpack[").removesuffix("]")
        accepted |= getattr(keywords, row).__optional_keys__
    return accepted


@pytest.mark.parametrize(
    "kind", EXPECTED, ids=lambda k: f"{k.__module__.split('.')[2]}.{k.__name__}"
)
def test_keywords_are_transformer_engines(kind):
    assert _accepted(kind) == set(EXPECTED[kind].split())


def test_positions_are_transformer_engines():
    """The arguments that models pass by position, in TransformerEngine's order."""
    for kind, names in (
        (M.Linear, "in_features out_features"),
        (M.LayerNormLinear, "in_features out_features eps"),
        (M.LayerNormMLP, "hidden_size ffn_hidden_size eps"),
        (M.GroupedLinear, "num_gemms in_features out_features"),
        (M.TransformerLayer, "hidden_size ffn_hidden_size num_attention_heads num_gqa_groups"),
        (M.MultiheadAttention, "hidden_size num_attention_heads kv_channels attention_dropout"),
        (M.DotProductAttention, "num_attention_heads kv_channels num_gqa_groups"),
    ):
        given = list(inspect.signature(kind).parameters)
        expected = names.split()
        assert given[: len(expected)] == expected


def test_keywords_without_effect_are_taken():
    torch.manual_seed(0)
    plain = M.Linear(16, 16)
    torch.manual_seed(0)
    given = M.Linear(
        16,
        16,
        sequence_parallel=True,
        tp_size=1,
        ub_overlap_ag=True,
        ub_name="qkv",
        fuse_wgrad_accumulation=True,
        delay_wgrad_compute=True,
        save_original_input=True,
    )
    x = torch.randn(4, 16)
    assert torch.equal(given(x), plain(x))
    given(x).sum().backward()
    assert given.weight.grad is not None
    given.backward_dw()


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: M.Linear(16, 16, bais=True), "keyword of Linear 'bais'"),
        (lambda: M.Linear(16, 16, set_parallel_mode=True), "keyword of Linear 'set_parallel_mode'"),
        (lambda: M.TransformerLayer(64, 64, 4, dropout=0), "keyword of TransformerLayer 'dropout'"),
        (lambda: M.LayerNorm(16, elementwise_affine=True), "keyword of LayerNorm"),
        (lambda: ops.BasicLinear(16, 16, bias=True), "keyword of ops.BasicLinear 'bias'"),
        (lambda: ops.ScaledSReLU(recompute=True), "keyword of ScaledSReLU 'recompute'"),
    ],
)
def test_other_keywords_are_errors(build, text):
    with pytest.raises(UnknownNameError, match=text):
        build()


def test_parallelism_that_is_not_done_is_warned_of():
    with pytest.warns(UserWarning, match="Linear: the layer is built whole on one device"):
        module = M.Linear(16, 32, tp_size=2, parallel_mode="column")
    assert module.weight.shape == (32, 16)
