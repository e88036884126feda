"""Shapes only, on the meta device: the architecture of config.json as transformers builds it."""

import json
from pathlib import Path

import torch
from torch import nn


def build() -> nn.Module:
    """The model on the meta device: shapes, no weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    facts = json.loads((Path(__file__).parent / "config.json").read_text())
    config = AutoConfig.for_model(facts.pop("model_type"), **facts)
    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval()
