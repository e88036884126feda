"""The real models load without a missing or unexpected weight, and know what they were taught."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tests.models.moe import loss, texts

pytestmark = pytest.mark.slow


def _load(folder: Path) -> torch.nn.Module:
    transformers.utils.logging.disable_progress_bar()
    (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
    model, report = getattr(transformers, architecture).from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(report.values()), report
    return model.eval()


def test_smollm2_knows_a_capital(smollm2):
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.inference_mode():
        best = _load(smollm2)(ids).logits[0, -1].argmax()
    assert tokenizer.decode(best) == " Paris"


def _drawings(round_ones: bool, generator: torch.Generator) -> torch.Tensor:
    """Twelve discs, or squares of their area, of any place, size and two colours."""
    drawn, line = [], torch.arange(224.0)
    for _ in range(12):
        y, x = 80 + 64 * torch.rand(2, generator=generator)
        radius = 40 + 20 * torch.rand(1, generator=generator)
        dy, dx = (line - y).abs()[:, None], (line - x).abs()[None]
        disc, square = dy**2 + dx**2 < radius**2, torch.maximum(dy, dx) < radius * math.pi**0.5 / 2
        colour, background = torch.randn(2, 3, 1, 1, generator=generator)
        drawn.append(torch.where(disc if round_ones else square, colour, background))
    return torch.stack(drawn)


def _share_beside_its_kind(features: torch.Tensor) -> float:
    """How many of two equally large classes have one of their own as the nearest other."""
    unit = torch.nn.functional.normalize(features.flatten(1), dim=1)
    nearest = (unit @ unit.T).fill_diagonal_(-1).argmax(1)
    kind = torch.arange(len(unit)) // (len(unit) // 2)
    return (kind[nearest] == kind).float().mean().item()


def test_dinov2_tells_discs_from_squares(dinov2):
    generator = torch.Generator().manual_seed(0)
    images = torch.cat([_drawings(True, generator), _drawings(False, generator)])
    with torch.inference_mode():
        features = _load(dinov2)(images).pooler_output
    assert _share_beside_its_kind(images) < 0.6
    assert _share_beside_its_kind(features) > 0.9


def test_whisper_hears_you_in_silence(whisper):
    """As this model is known to; with one projection transposed it hears nothing."""
    start_without_timestamps = torch.tensor([[50257, 50362]])
    model = _load(whisper)
    silence = torch.full((1, 80, 3000), -1.0, dtype=model.dtype)
    with torch.inference_mode():
        logits = model(silence, decoder_input_ids=start_without_timestamps).logits
    assert AutoTokenizer.from_pretrained(whisper).decode(logits[0, -1].argmax()) == " you"


def test_efficientnet_has_one_linear_layer_among_convolutions(efficientnet):
    shapes = [tuple(t.shape) for t in load_file(efficientnet / "model.safetensors").values()]
    assert [shape for shape in shapes if len(shape) == 2] == [(1000, 1280)]
    assert sum(len(shape) == 4 for shape in shapes) == 49


def test_moe_predicts_text_that_it_was_not_trained_on(moe):
    recorded = json.loads((moe / "training.json").read_text())["held_out_nats_per_byte"]
    _, held_out = texts()
    assert loss(_load(moe), held_out) == pytest.approx(recorded, rel=1e-4)
    assert recorded < 2
