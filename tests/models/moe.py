"""A tiny Mixtral over bytes, trained here on the documentation that every Python carries.

2.6 million fp32 parameters, eight experts, two per token. Training takes about 90 seconds of one
core. Another version of Python has other text, and another processor rounds otherwise: the model is
the same only where both are.
"""

from __future__ import annotations

import json
from pathlib import Path
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.utils import logging as transformers_logging

from tests.models.real_model import RealModel

BYTES, WINDOW, BATCH = 256, 256, 4
STEPS = 800
PEAK_LEARNING_RATE = 6e-3

CONFIG = {
    "vocab_size": BYTES,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.02,
    "max_position_embeddings": WINDOW,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "bos_token_id": None,
    "eos_token_id": ord("\n"),
    "pad_token_id": 0,
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": WINDOW,
    "clean_up_tokenization_spaces": False,
}


def make(out: Path, scratch: Path) -> None:
    """Trains on nine tenths of the text and records the loss on the last one."""
    torch.set_num_threads(1)  # sums in another order would make another model
    transformers_logging.disable_progress_bar()
    training, held_out = texts()
    model = trained(training, STEPS)
    model.save_pretrained(out)
    byte_tokenizer().save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG, indent=1))
    record = {"steps": STEPS, "held_out_nats_per_byte": loss(model, held_out)}
    (out / "training.json").write_text(json.dumps(record, indent=1))


def texts() -> tuple[Tensor, Tensor]:
    """The bytes to train on and those held out, as int64."""
    text = "\n\n".join(topics.values()).encode()
    ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    cut = len(ids) * 9 // 10
    return ids[:cut], ids[cut:]


def trained(ids: Tensor, steps: int) -> MixtralForCausalLM:
    """A model after so many steps on random windows of `ids`; the same for the same arguments."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MixtralForCausalLM(MixtralConfig(**CONFIG))
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.05
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, PEAK_LEARNING_RATE, total_steps=steps, pct_start=0.1
        )
        for _ in range(steps):
            _step(model, optimizer, _windows(ids))
            schedule.step()
    return model.eval()


def loss(model: MixtralForCausalLM, ids: Tensor) -> float:
    """Mean cross-entropy, in nats per byte, over the whole windows of `ids`."""
    windows = ids[: len(ids) // WINDOW * WINDOW].view(-1, WINDOW)
    with torch.inference_mode():
        total = sum(len(part) * model(part, labels=part).loss.item() for part in windows.split(8))
    return total / len(windows)


def byte_tokenizer() -> Tokenizer:
    """One token per byte, whose id is the byte."""
    # The byte-level alphabet shows a byte as its own character or, where that is not printable,
    # as the next free one from 256 on.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = {ord(character) for character in alphabet if ord(character) < BYTES}
    substitutes = iter(alphabet[len(printable) :])
    vocabulary = {chr(i) if i in printable else next(substitutes): i for i in range(BYTES)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def _windows(ids: Tensor) -> Tensor:
    starts = torch.randint(len(ids) - WINDOW, (BATCH, 1))
    return ids[starts + torch.arange(WINDOW)]


def _step(model: MixtralForCausalLM, optimizer: torch.optim.Optimizer, windows: Tensor) -> None:
    optimizer.zero_grad()
    model(windows, labels=windows, output_router_logits=True).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


MODEL = RealModel(
    "moe-tiny",
    (
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.json",
    ),
    make,
)
