"""TransformerEngine's modules on any device: names, constructors, slots and arithmetic."""

from __future__ import annotations

from qrole.modules import ops
from qrole.modules.attention import (
    DotProductAttention,
    MultiheadAttention,
    RotaryPositionEmbedding,
    apply_rotary_pos_emb,
)
from qrole.modules.base import MissingRoleWarning, QuantizedModule
from qrole.modules.grouped_linear import GroupedLinear
from qrole.modules.layernorm_linear import LayerNormLinear
from qrole.modules.layernorm_mlp import LayerNormMLP
from qrole.modules.linear import Linear
from qrole.modules.norm import LayerNorm, RMSNorm
from qrole.modules.padding import Fp8Padding, Fp8Unpadding
from qrole.modules.rebuild import RoleCountError, StaleQuantizersWarning
from qrole.modules.slots import EmitsSlots, SlotFacts
from qrole.modules.transformer import TransformerLayer

__all__ = [
    "DotProductAttention",
    "EmitsSlots",
    "Fp8Padding",
    "Fp8Unpadding",
    "GroupedLinear",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "MissingRoleWarning",
    "MultiheadAttention",
    "QuantizedModule",
    "RMSNorm",
    "RoleCountError",
    "RotaryPositionEmbedding",
    "SlotFacts",
    "StaleQuantizersWarning",
    "TransformerLayer",
    "apply_rotary_pos_emb",
    "ops",
]
