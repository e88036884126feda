"""Attention: dot-product attention with FP8 slots, and multi-head attention around it."""

from __future__ import annotations

from qrole.modules.attention.dot_product import DotProductAttention
from qrole.modules.attention.multihead import MultiheadAttention
from qrole.modules.attention.rope import RotaryPositionEmbedding, apply_rotary_pos_emb

__all__ = [
    "DotProductAttention",
    "MultiheadAttention",
    "RotaryPositionEmbedding",
    "apply_rotary_pos_emb",
]
