"""Which quantizer every tensor of a PyTorch model gets: show it, check it, apply it, measure it.

The public names are resolved when they are first used, so that `import qrole` costs nothing and
imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from qrole._version import __version__

if TYPE_CHECKING:
    from qrole.api import inspect
    from qrole.dtypes import DType
    from qrole.emitters import EmitOptions, Emitter
    from qrole.errors import QroleError
    from qrole.loading import LoadedModel, load_model
    from qrole.plans import Decision, Inventory, Plan
    from qrole.plugins import Factory, load_factory
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
        MXFP8BlockScaling,
        NVFP4BlockScaling,
        Recipe,
    )
    from qrole.roles import (
        DelayedScalingRequest,
        Direction,
        QuantizerRequest,
        QuantizerRole,
        Slot,
    )

_HOME = {
    "qrole.api": ("inspect",),
    "qrole.dtypes": ("DType",),
    "qrole.emitters": ("EmitOptions", "Emitter"),
    "qrole.errors": ("QroleError",),
    "qrole.loading": ("LoadedModel", "load_model"),
    "qrole.plans": ("Decision", "Inventory", "Plan"),
    "qrole.plugins": ("Factory", "load_factory"),
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
        "MXFP8BlockScaling",
        "NVFP4BlockScaling",
        "Recipe",
    ),
    "qrole.roles": (
        "DelayedScalingRequest",
        "Direction",
        "QuantizerRequest",
        "QuantizerRole",
        "Slot",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "CustomRecipe",
    "DType",
    "Decision",
    "DelayedScaling",
    "DelayedScalingRequest",
    "Direction",
    "EmitOptions",
    "Emitter",
    "Factory",
    "Float8BlockQuantizer",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "Format",
    "HybridQuantizer",
    "IdentityQuantizer",
    "Inventory",
    "LoadedModel",
    "MXFP4Quantizer",
    "MXFP8BlockScaling",
    "MXFP8Quantizer",
    "NVFP4BlockScaling",
    "NVFP4Quantizer",
    "OperandFormat",
    "Plan",
    "QroleError",
    "QuantizedTensor",
    "Quantizer",
    "QuantizerRequest",
    "QuantizerRole",
    "Recipe",
    "Slot",
    "__version__",
    "inspect",
    "load_factory",
    "load_model",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'qrole' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
