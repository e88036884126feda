"""Tensor layouts of attention: `sbhd`, `bshd` and `thd` to (B, H, S, D) and back.

Letters: B batch, S sequence, T all tokens of all sequences, H heads, D head size. In `thd` the
sequences of a batch lie one after another and cumulative lengths tell where each begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qrole.errors import ConfigError, UnknownNameError

__all__ = ["FORMATS", "Sequences", "from_heads_first", "split_packed", "to_heads_first"]

FORMATS: tuple[str, ...] = ("sbhd", "bshd", "thd")


@dataclass(frozen=True)
class Sequences:
    """Where the sequences of one `thd` tensor lie.

    Attributes:
        lengths_B: Tokens of each sequence.
        starts_B: Index of each sequence's first token; gaps between sequences are padding.
        longest: Positions of the padded form.
    """

    lengths_B: Tensor
    starts_B: Tensor
    longest: int

    @classmethod
    def of(cls, cumulative: Tensor, padded: Tensor | None, longest: int | None) -> Sequences:
        """From cumulative lengths (B + 1,), without and with the padding between sequences."""
        lengths_B = cumulative[1:] - cumulative[:-1]
        starts_B = (padded if padded is not None else cumulative)[:-1]
        return cls(lengths_B, starts_B, longest or int(lengths_B.max()))

    def token_of_position(self) -> tuple[Tensor, Tensor]:
        """Index of the token at each position (B, longest), and whether there is one."""
        positions = torch.arange(self.longest, device=self.lengths_B.device)
        there = positions < self.lengths_B.unsqueeze(1)
        return (self.starts_B.unsqueeze(1) + positions) * there, there


def to_heads_first(x: Tensor, layout: str, sequences: Sequences | None = None) -> Tensor:
    """(B, H, S, D) of a tensor in one of `FORMATS`; missing tokens are zero.

    Args:
        x: (S, B, H, D), (B, S, H, D) or (T, H, D).
        layout: Which of the three.
        sequences: For `thd`, where its sequences lie.

    Raises:
        UnknownNameError: No such layout.
    """
    if layout == "sbhd":
        return x.permute(1, 2, 0, 3)
    if layout == "bshd":
        return x.permute(0, 2, 1, 3)
    if layout != "thd":
        raise UnknownNameError("qkv_format", layout, FORMATS)
    assert sequences is not None, "thd has cumulative lengths"
    tokens, there = sequences.token_of_position()
    return (x[tokens] * there[:, :, None, None]).permute(0, 2, 1, 3)


def from_heads_first(
    x: Tensor, layout: str, sequences: Sequences | None = None, tokens: int = 0
) -> Tensor:
    """The inverse of `to_heads_first`, heads and head size joined.

    Args:
        x: (B, H, S, D).
        layout: One of `FORMATS`.
        sequences: For `thd`, where its sequences lie.
        tokens: For `thd`, T; tokens outside all sequences are zero.

    Returns:
        (S, B, H*D), (B, S, H*D) or (T, H*D).
    """
    if layout == "sbhd":
        return x.permute(2, 0, 1, 3).flatten(2)
    joined = x.permute(0, 2, 1, 3).flatten(2)
    if layout == "bshd":
        return joined
    assert sequences is not None, "thd has cumulative lengths"
    index, there = sequences.token_of_position()
    out = joined.new_zeros(tokens, joined.shape[-1])
    return out.index_put((index[there],), joined[there])


def split_packed(packed: Tensor, count: int, dim: int) -> tuple[Tensor, ...]:
    """Views of Q, K and V (or K and V) of one tensor that interleaves them.

    Args:
        packed: The tensor, `count` long in dimension `dim`.
        count: 3 or 2.
        dim: -3 (`bs3hd`) or -2 (`bsh3d`).

    Raises:
        ConfigError: The tensor is not that long there, or the dimension is none of the two.
    """
    if dim not in (-3, -2):
        raise ConfigError(
            f"qkv_interleave_dim={dim}",
            expected="-3 (such as bs3hd) or -2 (such as bsh3d)",
            hint="name the dimension that counts query, key and value",
        )
    if packed.shape[dim] != count:
        raise ConfigError(
            f"a packed tensor of shape {tuple(packed.shape)} with qkv_interleave_dim={dim}",
            expected=f"{count} entries in dimension {dim}",
            hint="qkv_layer packs three tensors, kv_layer two",
        )
    return packed.unbind(dim)
