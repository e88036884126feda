"""Slots of transformers models built from tiny configs, on the meta device."""

from __future__ import annotations

import pytest
import torch
import transformers

from qrole.emitters import walk_module

_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def _meta(cls, config):
    with torch.device("meta"):
        return cls._from_config(config)


def test_llama_slot_names_are_module_paths():
    config = transformers.LlamaConfig(**_SIZES, **_HEADS)
    found = walk_module(_meta(transformers.LlamaForCausalLM, config), "llama")
    modules = {slot.module for slot in found.slots}
    assert "model.layers.1.self_attn.q_proj" in modules
    assert "lm_head" in modules
    assert len(modules) == 2 * 7 + 1


def test_bert_covers_all_linear_layers():
    config = transformers.BertConfig(**_SIZES, num_attention_heads=4)
    found = walk_module(_meta(transformers.BertModel, config), "bert")
    assert len(found.slots) == 3 * (2 * 6 + 1)


@pytest.mark.parametrize(
    ("name", "sizes", "experts", "gate_up", "down"),
    [
        ("Mixtral", {"num_local_experts": 4}, 4, (96, 32), (32, 48)),
        (
            "Qwen3Moe",
            {"num_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2},
            4,
            (32, 32),
            (32, 16),
        ),
        ("GptOss", {"num_local_experts": 4, "head_dim": 8}, 4, (96, 32), (32, 48)),
        (
            "DeepseekV3",
            {
                "n_routed_experts": 4,
                "moe_intermediate_size": 16,
                "first_k_dense_replace": 0,
                "n_group": 2,
                "topk_group": 1,
                "num_key_value_heads": 4,
            },
            4,
            (32, 32),
            (32, 16),
        ),
    ],
)
def test_fused_experts_are_grouped_linear(name, sizes, experts, gate_up, down):
    config = getattr(transformers, f"{name}Config")(**{**_SIZES, **_HEADS, **sizes})
    found = walk_module(_meta(getattr(transformers, f"{name}ForCausalLM"), config), name)
    weights = [s for s in found.slots if s.operand == "weight" and s.copies > 1]
    shapes = {s.group: (s.copies, s.shape) for s in weights}
    assert shapes == {"gate_up_proj": (experts, gate_up), "down_proj": (experts, down)}
    assert {s.role.module_type for s in weights} == {"grouped_linear"}
    assert len(weights) == 2 * 2


def test_router_is_named_as_not_covered():
    config = transformers.MixtralConfig(**_SIZES, **_HEADS, num_local_experts=4)
    found = walk_module(_meta(transformers.MixtralForCausalLM, config), "mixtral")
    reasons = {u.module: u.reason for u in found.uncovered}
    assert reasons["model.layers.0.mlp.gate"] == "router: kept in high precision"


def test_gpt2_conv1d_is_a_transposed_linear():
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=64)
    found = walk_module(_meta(transformers.GPT2LMHeadModel, config), "gpt2")
    shapes = {s.module: s.shape for s in found.slots if s.operand == "weight"}
    assert shapes["transformer.h.0.attn.c_attn"] == (96, 32)
    assert shapes["transformer.h.0.mlp.c_proj"] == (32, 128)
