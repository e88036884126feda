"""Rotary position embedding: angles, and their application to queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qrole.errors import ConfigError
from qrole.modules.parameters import resolve_device

__all__ = ["RotaryPositionEmbedding", "apply_rotary_pos_emb"]


class RotaryPositionEmbedding(nn.Module):
    """Angles of the rotary embedding.

    Args:
        dim: Head size.
        rotary_percent: Share of the head size that is rotated, 0 to 1.
        seq_len_interpolation_factor: Positions are divided by it; None for no interpolation.
        pretrained_max_position_embeddings: Longest sequence of pretraining; beyond the factor
            times that, positions are scaled to fit.
        rotary_base: Base of the geometric series of frequencies.
        interleaved: Pairs are neighbours instead of halves.
    """

    def __init__(
        self,
        dim: int,
        rotary_percent: float = 1.0,
        seq_len_interpolation_factor: int | None = None,
        pretrained_max_position_embeddings: int | None = None,
        rotary_base: float = 10000.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        if rotary_percent < 1.0:
            dim = int(dim * rotary_percent)
        self.factor = seq_len_interpolation_factor
        self.pretrained = pretrained_max_position_embeddings
        self.interleaved = interleaved
        exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=resolve_device("cuda"))
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", 1.0 / rotary_base ** (exponents / dim))

    def forward(self, max_seq_len: int, offset: int = 0) -> Tensor:
        """Angles of positions `offset` and on, fp32: (max_seq_len, 1, 1, dim)."""
        positions = torch.arange(max_seq_len, device=self.inv_freq.device, dtype=torch.float32)
        positions = positions + offset
        if self.pretrained is not None and self.factor is not None:
            longest = self.pretrained * self.factor
            divisor = max_seq_len / self.pretrained if max_seq_len > longest else self.factor
            positions = positions / divisor
        angles = torch.outer(positions, self.inv_freq.float())
        if self.interleaved:
            angles = angles.repeat_interleave(2, dim=-1)
        else:
            angles = torch.cat([angles, angles], dim=-1)
        return angles[:, None, None, :]


def apply_rotary_pos_emb(
    t: Tensor,
    freqs: Tensor,
    tensor_format: str = "sbhd",
    interleaved: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Rotates the first `freqs.shape[-1]` channels of every head, in fp32 rounded once.

    Args:
        t: (S, B, H, D), (B, S, H, D) or (T, H, D).
        freqs: Angles (>= S, 1, 1, <= D).
        tensor_format: `sbhd`, `bshd` or `thd`.
        interleaved: Pairs are neighbours instead of halves.
        cu_seqlens: For `thd`, cumulative lengths (B + 1,).

    Raises:
        ConfigError: More positions than angles.
    """
    if tensor_format == "thd":
        assert cu_seqlens is not None, "thd has cumulative lengths"
        lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
        rest = t.shape[0] - sum(lengths)
        pieces = torch.split(t, [*lengths, rest])
        rotated = [
            apply_rotary_pos_emb(piece.unsqueeze(1), freqs, "sbhd", interleaved).squeeze(1)
            for piece in pieces[:-1]
        ]
        return torch.cat([*rotated, pieces[-1]])
    positions = t.shape[0] if tensor_format == "sbhd" else t.shape[1]
    if positions > freqs.shape[0]:
        raise ConfigError(
            f"{positions} positions and angles for {freqs.shape[0]}",
            expected="angles for every position",
            hint="make them with RotaryPositionEmbedding(dim)(max_seq_len)",
        )
    angles = freqs[:positions].float()
    angles = angles if tensor_format == "sbhd" else angles.transpose(0, 1)
    turned, kept = t[..., : freqs.shape[-1]].float(), t[..., freqs.shape[-1] :]
    turned = turned * angles.cos() + _quarter_turn(turned, interleaved) * angles.sin()
    return torch.cat([turned.to(t.dtype), kept], dim=-1)


def _quarter_turn(x: Tensor, interleaved: bool) -> Tensor:
    if interleaved:
        return torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)
