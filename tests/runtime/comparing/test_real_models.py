"""Real models of other kinds: every layer runs quantized, forward and backward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from qrole.comparing import DataOptions, compare


def _rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
def test_vision_transformer(dinov2: Path, tmp_path: Path) -> None:
    file = tmp_path / "images.safetensors"
    save_file({"pixel_values": _rand(1, 3, 224, 224)}, file)
    report = compare(str(dinov2), "mxfp8", data=DataOptions(file, samples=1))
    (found,) = report.candidates
    assert report.objective == "projection"
    assert found.not_computed == {}
    assert len(found.gemms) == 3 * len(found.layers)
    assert found.model.cosine is not None
    assert found.model.cosine > 0.97


@pytest.mark.slow
def test_encoder_decoder(whisper: Path, tmp_path: Path) -> None:
    file = tmp_path / "speech.safetensors"
    inputs = {"input_features": _rand(1, 80, 3000), "decoder_input_ids": torch.arange(8)[None]}
    save_file(inputs, file)
    report = compare(str(whisper), "mxfp8", data=DataOptions(file), dtype=torch.float32)
    (found,) = report.candidates
    assert report.objective == "next token"
    assert found.model.output == "logits"
    assert found.not_computed == {}
    assert {g.gemm for g in found.gemms} == {"fprop", "dgrad", "wgrad"}
