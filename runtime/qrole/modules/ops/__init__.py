"""TransformerEngine's operations: small modules that a `Sequential` runs as one pipeline."""

from __future__ import annotations

from qrole.modules.ops.activation import (
    GEGLU,
    GELU,
    GLU,
    QGEGLU,
    QGELU,
    ClampedSwiGLU,
    ReGLU,
    ReLU,
    ScaledClampedQGeGLU,
    ScaledSiTUGLU,
    ScaledSReLU,
    ScaledSwiGLU,
    SiLU,
    SiTUGLU,
    SReGLU,
    SReLU,
    SwiGLU,
)
from qrole.modules.ops.basic_linear import BasicLinear
from qrole.modules.ops.elementwise import (
    AddExtraInput,
    Bias,
    ConstantScale,
    Dropout,
    Identity,
    MakeExtraOutput,
    Reshape,
)
from qrole.modules.ops.grouped_linear import GroupedLinear
from qrole.modules.ops.linear import Linear
from qrole.modules.ops.norm import L2Normalization, LayerNorm, RMSNorm
from qrole.modules.ops.operation import BasicOperation, FusedOperation, FusibleOperation
from qrole.modules.ops.quantize import Quantize
from qrole.modules.ops.sequential import Sequential

__all__ = [
    "GEGLU",
    "GELU",
    "GLU",
    "QGEGLU",
    "QGELU",
    "AddExtraInput",
    "BasicLinear",
    "BasicOperation",
    "Bias",
    "ClampedSwiGLU",
    "ConstantScale",
    "Dropout",
    "FusedOperation",
    "FusibleOperation",
    "GroupedLinear",
    "Identity",
    "L2Normalization",
    "LayerNorm",
    "Linear",
    "MakeExtraOutput",
    "Quantize",
    "RMSNorm",
    "ReGLU",
    "ReLU",
    "Reshape",
    "SReGLU",
    "SReLU",
    "ScaledClampedQGeGLU",
    "ScaledSReLU",
    "ScaledSiTUGLU",
    "ScaledSwiGLU",
    "Sequential",
    "SiLU",
    "SiTUGLU",
    "SwiGLU",
]
