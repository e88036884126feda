"""Emitter for fused experts: modules that hold all experts' weights as 3-D parameters.

Covers the layout of transformers (Mixtral, Qwen-MoE, DeepSeek, GPT-OSS, Llama 4 and others):
`gate_up_proj` or `up_proj`, and `down_proj`, with the expert as first dimension. A module says how
its matrices lie by `is_transposed`, or by its `hidden_size` / `hidden_dim`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from qrole.emitters.base import EmitOptions, Emitter, class_name, linear_slots
from qrole.roles import Slot

if TYPE_CHECKING:
    from torch import nn

__all__ = ["FusedExpertsEmitter", "expert_matrix_is_transposed"]

_PROJECTIONS = ("gate_up_proj", "gate_proj", "up_proj", "down_proj")


class FusedExpertsEmitter(Emitter):
    """3-D expert weights as `grouped_linear`, one layer per projection, `copies` = experts."""

    name: ClassVar[str] = "fused experts"
    priority: ClassVar[int] = 0

    def slots(self, path: str, module: nn.Module, options: EmitOptions) -> list[Slot] | None:
        """Slots of a fused-experts module; None where its parameters are no such experts."""
        own = dict(module.named_parameters(recurse=False))
        found = [name for name in _PROJECTIONS if name in own and own[name].dim() == 3]
        if not found:
            return None
        slots: list[Slot] = []
        for i, name in enumerate(found):
            transposed = expert_matrix_is_transposed(module, name)
            if transposed is None:
                return None
            experts, rows, columns = own[name].shape
            slots += linear_slots(
                path,
                class_name(module),
                weight=f"{path}.{name}" if path else name,
                shape=(columns, rows) if transposed else (rows, columns),
                group=name,
                module_type="grouped_linear",
                copies=experts,
                start=(2 * i, i),
            )
        return slots


def expert_matrix_is_transposed(module: nn.Module, name: str) -> bool | None:
    """Whether `(experts, in, out)` rather than `(experts, out, in)` is stored; None if unknown."""
    declared = getattr(module, "is_transposed", None)
    if isinstance(declared, bool):
        return declared
    owner: Any = module
    hidden = getattr(owner, "hidden_size", None) or getattr(owner, "hidden_dim", None)
    _, rows, columns = getattr(owner, name).shape
    if hidden is None or (rows == hidden) == (columns == hidden):
        return None
    out_is_hidden = name == "down_proj"
    return bool((rows == hidden) != out_is_hidden)
