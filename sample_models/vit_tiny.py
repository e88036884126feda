"""A vision transformer in plain torch: convolutional patches, `nn.MultiheadAttention`, MLP.

Shapes: B batch, P patches, D model width.
"""

import torch
from torch import nn

_IMAGE, _PATCH, _WIDTH, _HEADS, _LAYERS, _CLASSES = 32, 8, 96, 4, 3, 10


class Block(nn.Module):
    """Pre-norm encoder block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(_WIDTH)
        self.attn = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True)
        self.norm2 = nn.LayerNorm(_WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH)
        )

    def forward(self, x_BPD: torch.Tensor) -> torch.Tensor:
        y_BPD = self.norm1(x_BPD)
        x_BPD = x_BPD + self.attn(y_BPD, y_BPD, y_BPD, need_weights=False)[0]
        return x_BPD + self.mlp(self.norm2(x_BPD))


class TinyViT(nn.Module):
    """Images (B, 3, 32, 32) to class scores (B, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, _WIDTH, _PATCH, stride=_PATCH)
        self.position = nn.Parameter(torch.randn((_IMAGE // _PATCH) ** 2, _WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(_LAYERS))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x_BPD = self.patch_embed(images).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x_BPD = block(x_BPD)
        return self.head(self.norm(x_BPD).mean(1))


def build() -> nn.Module:
    """The model, seeded, in eval mode."""
    torch.manual_seed(0)
    return TinyViT().eval()


def example_inputs() -> tuple[torch.Tensor]:
    """Eight images, shape (8, 3, 32, 32)."""
    return (torch.rand(8, 3, _IMAGE, _IMAGE, generator=torch.Generator().manual_seed(1)),)


def loss(outputs: torch.Tensor, batch: tuple[torch.Tensor]) -> torch.Tensor:
    """Cross-entropy against the brightest colour channel."""
    return nn.functional.cross_entropy(outputs, batch[0].mean((2, 3)).argmax(-1))
