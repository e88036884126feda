"""Which quantizer every tensor of a PyTorch model gets: show it, check it, apply it, measure it.

The public names are resolved when they are first used, so that `import qrole` costs nothing and
imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from qrole._version import __version__

if TYPE_CHECKING:
    from qrole.api import apply, audit, compare, inspect, judge, plan, search, verify
    from qrole.auditing import AuditReport, Finding
    from qrole.autocasting import autocast, fp8_autocast, fp8_model_init, quantized_model_init
    from qrole.checkpoint.apply import ApplyReport
    from qrole.checkpoint.load import load
    from qrole.checkpoint.verification.report import VerifyReport
    from qrole.comparing import Gate, Report
    from qrole.dtypes import DType
    from qrole.emitters import EmitOptions, Emitter
    from qrole.errors import (
        CheckpointError,
        ConfigError,
        FactoryError,
        InterruptedRunError,
        MissingExtraError,
        NothingMatchedError,
        OperandError,
        OutputExistsError,
        QroleError,
        UnknownNameError,
        UsageError,
        UserCodeError,
    )
    from qrole.loading import LoadedModel, load_model
    from qrole.modules import (
        DotProductAttention,
        Fp8Padding,
        Fp8Unpadding,
        GroupedLinear,
        LayerNorm,
        LayerNormLinear,
        LayerNormMLP,
        Linear,
        MissingRoleWarning,
        MultiheadAttention,
        RMSNorm,
        RotaryPositionEmbedding,
        StaleQuantizersWarning,
        TransformerLayer,
        apply_rotary_pos_emb,
        ops,
    )
    from qrole.plans import Decision, Inventory, Plan
    from qrole.plugins import Factory, list_factories, load_factory
    from qrole.quantizers import (
        Float8BlockQuantizer,
        Float8CurrentScalingQuantizer,
        Float8Quantizer,
        HybridQuantizer,
        IdentityQuantizer,
        MXFP4Quantizer,
        MXFP8Quantizer,
        NVFP4Quantizer,
        OperandFormat,
        QuantizedTensor,
        Quantizer,
    )
    from qrole.recipes import (
        CustomRecipe,
        DelayedScaling,
        Float8BlockScaling,
        Float8CurrentScaling,
        Format,
        IgnoredSettingWarning,
        MXFP8BlockScaling,
        NVFP4BlockScaling,
        Recipe,
        get_align_size_for_quantization,
    )
    from qrole.roles import DelayedScalingRequest, Direction, QuantizerRequest, QuantizerRole, Slot
    from qrole.searching import SearchResult

_HOME = {
    "qrole.api": ("apply", "audit", "compare", "inspect", "judge", "plan", "search", "verify"),
    "qrole.auditing": ("AuditReport", "Finding"),
    "qrole.autocasting": ("autocast", "fp8_autocast", "fp8_model_init", "quantized_model_init"),
    "qrole.checkpoint.apply": ("ApplyReport",),
    "qrole.checkpoint.load": ("load",),
    "qrole.checkpoint.verification.report": ("VerifyReport",),
    "qrole.comparing": ("Gate", "Report"),
    "qrole.dtypes": ("DType",),
    "qrole.emitters": ("EmitOptions", "Emitter"),
    "qrole.errors": (
        "CheckpointError",
        "ConfigError",
        "FactoryError",
        "InterruptedRunError",
        "MissingExtraError",
        "NothingMatchedError",
        "OperandError",
        "OutputExistsError",
        "QroleError",
        "UnknownNameError",
        "UsageError",
        "UserCodeError",
    ),
    "qrole.loading": ("LoadedModel", "load_model"),
    "qrole.modules": (
        "DotProductAttention",
        "Fp8Padding",
        "Fp8Unpadding",
        "GroupedLinear",
        "LayerNorm",
        "LayerNormLinear",
        "LayerNormMLP",
        "Linear",
        "MissingRoleWarning",
        "MultiheadAttention",
        "RMSNorm",
        "RotaryPositionEmbedding",
        "StaleQuantizersWarning",
        "TransformerLayer",
        "apply_rotary_pos_emb",
        "ops",
    ),
    "qrole.plans": ("Decision", "Inventory", "Plan"),
    "qrole.plugins": ("Factory", "list_factories", "load_factory"),
    "qrole.quantizers": (
        "Float8BlockQuantizer",
        "Float8CurrentScalingQuantizer",
        "Float8Quantizer",
        "HybridQuantizer",
        "IdentityQuantizer",
        "MXFP4Quantizer",
        "MXFP8Quantizer",
        "NVFP4Quantizer",
        "OperandFormat",
        "QuantizedTensor",
        "Quantizer",
    ),
    "qrole.recipes": (
        "CustomRecipe",
        "DelayedScaling",
        "Float8BlockScaling",
        "Float8CurrentScaling",
        "Format",
        "IgnoredSettingWarning",
        "MXFP8BlockScaling",
        "NVFP4BlockScaling",
        "Recipe",
        "get_align_size_for_quantization",
    ),
    "qrole.roles": (
        "DelayedScalingRequest",
        "Direction",
        "QuantizerRequest",
        "QuantizerRole",
        "Slot",
    ),
    "qrole.searching": ("SearchResult",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "ApplyReport",
    "AuditReport",
    "CheckpointError",
    "ConfigError",
    "CustomRecipe",
    "DType",
    "Decision",
    "DelayedScaling",
    "DelayedScalingRequest",
    "Direction",
    "DotProductAttention",
    "EmitOptions",
    "Emitter",
    "Factory",
    "FactoryError",
    "Finding",
    "Float8BlockQuantizer",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "Format",
    "Fp8Padding",
    "Fp8Unpadding",
    "Gate",
    "GroupedLinear",
    "HybridQuantizer",
    "IdentityQuantizer",
    "IgnoredSettingWarning",
    "InterruptedRunError",
    "Inventory",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "LoadedModel",
    "MXFP4Quantizer",
    "MXFP8BlockScaling",
    "MXFP8Quantizer",
    "MissingExtraError",
    "MissingRoleWarning",
    "MultiheadAttention",
    "NVFP4BlockScaling",
    "NVFP4Quantizer",
    "NothingMatchedError",
    "OperandError",
    "OperandFormat",
    "OutputExistsError",
    "Plan",
    "QroleError",
    "QuantizedTensor",
    "Quantizer",
    "QuantizerRequest",
    "QuantizerRole",
    "RMSNorm",
    "Recipe",
    "Report",
    "RotaryPositionEmbedding",
    "SearchResult",
    "Slot",
    "StaleQuantizersWarning",
    "TransformerLayer",
    "UnknownNameError",
    "UsageError",
    "UserCodeError",
    "VerifyReport",
    "__version__",
    "apply",
    "apply_rotary_pos_emb",
    "audit",
    "autocast",
    "compare",
    "fp8_autocast",
    "fp8_model_init",
    "get_align_size_for_quantization",
    "inspect",
    "judge",
    "list_factories",
    "load",
    "load_factory",
    "load_model",
    "ops",
    "plan",
    "quantized_model_init",
    "search",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'qrole' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
