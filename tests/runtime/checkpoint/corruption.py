"""A small checkpoint to spoil, and the ways of spoiling it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

LAYERS = 2
HIDDEN, INNER = 128, 256


def llama_like(directory: Path, *, tied: bool = False, shards: int = 1, seed: int = 0) -> Path:
    """Weights, config and tokenizer of a decoder, without any library's help."""
    directory.mkdir(parents=True, exist_ok=True)
    draw = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=draw).mul(0.05).bfloat16()

    tensors = {"model.embed_tokens.weight": matrix(64, HIDDEN)}
    for i in range(LAYERS):
        base = f"model.layers.{i}"
        for name, rows in (("q", HIDDEN), ("k", 64), ("v", 64), ("o", HIDDEN)):
            tensors[f"{base}.self_attn.{name}_proj.weight"] = matrix(rows, HIDDEN)
        tensors[f"{base}.self_attn.q_proj.bias"] = matrix(1, HIDDEN).reshape(-1)
        for name, rows, columns in (
            ("gate", INNER, HIDDEN),
            ("up", INNER, HIDDEN),
            ("down", HIDDEN, INNER),
        ):
            tensors[f"{base}.mlp.{name}_proj.weight"] = matrix(rows, columns)
        tensors[f"{base}.input_layernorm.weight"] = torch.ones(HIDDEN).bfloat16()
    if not tied:
        tensors["lm_head.weight"] = matrix(64, HIDDEN)
    write_shards(directory, tensors, shards)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "vocab_size": 64,
        "rope_theta": 500000.0,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (directory / "tokenizer.json").write_text('{"version": "1.0"}')
    return directory


def write_shards(directory: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    """The tensors in one file, or dealt to several with an index."""
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names, weight_map = list(tensors), {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        mine = {name: tensors[name] for name in names[i::shards]}
        save_file(mine, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(mine, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


@dataclass(frozen=True)
class Corruption:
    """One way of spoiling a checkpoint.

    Attributes:
        kind: Kind of the problem that verification must name.
        spoil: Does it.
        factory: What the checkpoint is quantized with.
    """

    kind: str
    spoil: Callable[[Path], object]
    factory: str = "nvfp4"


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def edit(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    """Rewrites the weights after `change`."""

    def spoil(directory: Path) -> None:
        tensors = tensors_of(directory)
        change(tensors)
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, directory / "model.safetensors", metadata={"format": "pt"})

    return spoil


def edit_tensor(
    name: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[Path], None]:
    """Replaces one tensor by `change` of it."""

    def apply(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = change(tensors[name])

    return edit(apply)


def edit_config(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Rewrites config.json after `change`."""

    def spoil(directory: Path) -> None:
        path = directory / "config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config, indent=2))

    return spoil


def edit_quantization(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Rewrites the quantization_config after `change`."""
    return edit_config(lambda config: change(config["quantization_config"]))


def flip_byte(name: str) -> Callable[[Path], None]:
    """Changes one byte in the middle of a tensor, in place."""

    def spoil(directory: Path) -> None:
        path = directory / "model.safetensors"
        content = bytearray(path.read_bytes())
        length = struct.unpack("<Q", content[:8])[0]
        start, end = json.loads(content[8 : 8 + length])[name]["data_offsets"]
        content[8 + length + (start + end) // 2] ^= 0x77
        path.write_bytes(content)

    return spoil
