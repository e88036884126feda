"""Tiny random transformers models in bf16, as HuggingFace directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCABULARY = 320

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
}


def build(name: str) -> Any:
    """A random model: `llama`, `tied`, `qwen3` or `qwen3moe`."""
    torch.manual_seed(3)
    if name == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**_SIZES, tie_word_embeddings=False))
    if name == "qwen3moe":
        experts = {"moe_intermediate_size": 256, "num_experts": 4, "num_experts_per_tok": 2}
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**_SIZES, **experts, tie_word_embeddings=False))
    return LlamaForCausalLM(LlamaConfig(**_SIZES, tie_word_embeddings=name == "tied"))


def write(name: str, directory: Path, *, max_shard_size: str = "5GB") -> Path:
    """The model in a directory, with a file of input ids to calibrate on."""
    model = build(name).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():  # norms of one would hide a lost one
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    ids = torch.randint(0, VOCABULARY, (8, 24), generator=torch.Generator().manual_seed(1))
    save_file({"input_ids": ids}, directory.parent / f"{directory.name}-ids.safetensors")
    return directory
