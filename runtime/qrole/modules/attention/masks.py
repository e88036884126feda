"""Attention masks and biases, as TransformerEngine defines them.

Shape letters: B batch, H heads, Q query positions, K key positions. A mask is True where a
position takes no part, and broadcasts to (B, H, Q, K).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from qrole.errors import ConfigError, UnknownNameError

__all__ = [
    "MASK_TYPES",
    "MaskRule",
    "alibi_bias",
    "alibi_slopes",
    "attention_mask",
    "mask_rule",
    "mask_type",
    "padding_from_lengths",
]

MASK_TYPES: tuple[str, ...] = (
    "no_mask",
    "padding",
    "causal",
    "padding_causal",
    "causal_bottom_right",
    "padding_causal_bottom_right",
    "arbitrary",
)


def mask_type(name: str) -> str:
    """A mask type under its own name; `causal,padding` and `padding,causal` are accepted.

    Raises:
        UnknownNameError: No such type.
    """
    name = name.replace(",", "_")
    name = "padding_causal" if name == "causal_padding" else name
    if name not in MASK_TYPES:
        raise UnknownNameError("attention mask type", name, MASK_TYPES)
    return name


@dataclass(frozen=True)
class MaskRule:
    """A mask type with its sliding window.

    Attributes:
        kind: One of `MASK_TYPES`.
        left: Keys before the diagonal that take part; -1 means all.
        right: Keys after it; -1 means all.
        bottom_right: The diagonal ends in the bottom right corner instead of beginning top left.
    """

    kind: str
    left: int
    right: int
    bottom_right: bool

    @property
    def padded(self) -> bool:
        """Sequences of the batch have lengths of their own."""
        return "padding" in self.kind

    @property
    def plainly_causal(self) -> bool:
        """Nothing but the causal triangle, aligned top left."""
        return self.kind == "causal" and (self.left, self.right) == (-1, 0)

    @property
    def trivial(self) -> bool:
        """Every position takes part."""
        return self.kind == "no_mask" and (self.left, self.right) == (-1, -1)


def mask_rule(
    name: str, window_size: tuple[int, int] | None, bottom_right_diagonal: bool | None
) -> MaskRule:
    """Checks a mask type against its window and resolves the diagonal.

    Causal types need a window `(-1, 0)` or `(>= 0, 0)`, the others `(-1, -1)` or `(>= 0, >= 0)`;
    the one value that means the same is corrected with a warning, as TransformerEngine does.

    Raises:
        ConfigError: The window does not suit the type.
    """
    kind = mask_type(name)
    causal = "causal" in kind
    window = tuple(window_size) if window_size is not None else ((-1, 0) if causal else (-1, -1))
    left, right = window
    allowed = "(-1, 0) or (>=0, 0)" if causal else "(-1, -1) or (>=0, >=0)"
    mended = (left, 0) if causal and (window == (-1, -1) or left >= 0) else window
    mended = (-1, -1) if not causal and window == (-1, 0) else mended
    if mended != window:
        warnings.warn(
            f"window_size should be {allowed} for attn_mask_type={kind}; {window} is taken as "
            f"{mended}",
            stacklevel=3,
        )
    left, right = mended
    fits = right == 0 if causal else (left == -1) == (right == -1)
    if left < -1 or right < -1 or not fits:
        raise ConfigError(
            f"window_size={window} with attn_mask_type={kind}",
            expected=f"window_size {allowed}",
            hint="leave window_size out for no sliding window",
        )
    if kind in ("causal", "padding_causal"):
        bottom_right = False
    elif kind.endswith("bottom_right") or bottom_right_diagonal is None:
        bottom_right = True
    else:
        bottom_right = bottom_right_diagonal
    return MaskRule(kind, left, right, bottom_right)


def padding_from_lengths(lengths_B: Tensor, positions: int) -> Tensor:
    """True at the positions beyond each sequence's length: (B, positions)."""
    return torch.arange(positions, device=lengths_B.device) >= lengths_B.unsqueeze(1)


def attention_mask(
    rule: MaskRule,
    queries: int,
    keys: int,
    device: torch.device,
    *,
    padding: tuple[Tensor, Tensor] | None = None,
    arbitrary: Tensor | None = None,
) -> Tensor | None:
    """The mask of a rule.

    Args:
        rule: Type and window.
        queries: Query positions.
        keys: Key positions.
        device: Where the mask is made.
        padding: For padded types, True at padding: (B, Q) and (B, K).
        arbitrary: For `arbitrary`, the mask itself; broadcasts to (B, H, Q, K).

    Returns:
        A boolean mask, or None where every position takes part.
    """
    mask = _band(rule, queries, keys, device, padding)
    if padding is not None:
        padded_q, padded_k = padding
        pad = padded_q[:, None, :, None] | padded_k[:, None, None, :]
        mask = pad if mask is None else mask | pad
    if arbitrary is not None:
        arbitrary = arbitrary.to(device)
        mask = arbitrary if mask is None else mask | arbitrary
    return mask


def _band(
    rule: MaskRule,
    queries: int,
    keys: int,
    device: torch.device,
    padding: tuple[Tensor, Tensor] | None,
) -> Tensor | None:
    if (rule.left, rule.right) == (-1, -1):
        return None
    distance = _distance(rule.bottom_right, queries, keys, device, padding)
    mask = torch.zeros_like(distance, dtype=torch.bool)
    if rule.left >= 0:
        mask = mask | (distance > rule.left)
    if rule.right >= 0:
        mask = mask | (distance < -rule.right)
    return mask


def _distance(
    bottom_right: bool,
    queries: int,
    keys: int,
    device: torch.device,
    padding: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """How far each key lies before its query's diagonal: (B or 1, 1, Q, K)."""
    rows = torch.arange(queries, device=device).view(1, 1, queries, 1)
    distance = rows - torch.arange(keys, device=device).view(1, 1, 1, keys)
    if not bottom_right:
        return distance
    if padding is None:
        return distance + (keys - queries)
    lengths_q, lengths_k = ((~pad).sum(dim=1) for pad in padding)
    return distance + (lengths_k - lengths_q).view(-1, 1, 1, 1)


def alibi_slopes(heads: int) -> Tensor:
    """The slopes of ALiBi: a geometric series, with every other one between for the rest."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = torch.pow(2.0 ** (-8.0 / power), torch.arange(1, power + 1))
    if power < heads:
        between = torch.arange(1, 1 + 2 * (heads - power), 2)
        slopes = torch.cat([slopes, torch.pow(2.0 ** (-4.0 / power), between)])
    return slopes.float()


def alibi_bias(
    rule: MaskRule,
    slopes: Tensor,
    queries: int,
    keys: int,
    device: torch.device,
    padding: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """`-slope * |distance to the diagonal|` in fp32: (B or 1, H, Q, K).

    Args:
        rule: Aligns the diagonal.
        slopes: (H,) or (B, H).
        queries: Query positions.
        keys: Key positions.
        device: Where the bias is made.
        padding: As for `attention_mask`.
    """
    distance = _distance(rule.bottom_right, queries, keys, device, padding)
    by_head = slopes.to(device).float()
    by_head = by_head.view(1, -1, 1, 1) if by_head.dim() == 1 else by_head[:, :, None, None]
    return -distance.abs() * by_head
