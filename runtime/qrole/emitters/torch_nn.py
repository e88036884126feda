"""Emitter for `torch.nn`: linear layers and attention with packed projections."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from qrole.emitters.base import (
    EmitOptions,
    Emitter,
    attention_slots,
    class_name,
    linear_slots,
)
from qrole.roles import Direction, Slot

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["TorchNNEmitter"]


class TorchNNEmitter(Emitter):
    """`nn.Linear` and its subclasses, and `nn.MultiheadAttention` with its four projections.

    The attention's projections are packed (`in_proj_weight`) or separate, and its `out_proj` is
    read without its own forward being called, so all of them belong to the attention's module.
    """

    name: ClassVar[str] = "torch.nn"
    priority: ClassVar[int] = 0

    def slots(self, path: str, module: nn.Module, options: EmitOptions) -> list[Slot] | None:
        """Slots of one module; None where it is neither."""
        from torch import nn

        if isinstance(module, nn.Linear):
            return linear_slots(
                path,
                class_name(module),
                weight=f"{path}.weight" if path else "weight",
                shape=tuple(module.weight.shape),
            )
        if isinstance(module, nn.MultiheadAttention):
            slots = _attention(path, module)
            if options.attention:
                forward = sum(slot.direction is Direction.FORWARD for slot in slots)
                start = (forward, len(slots) - forward)
                slots += attention_slots(path, class_name(module), name=path, start=start)
            return slots
        return None

    def covers_children(self, module: nn.Module) -> bool:
        """An attention's `out_proj` is covered by the attention's own slots."""
        from torch import nn

        return isinstance(module, nn.MultiheadAttention)


def _attention(path: str, module: nn.MultiheadAttention) -> list[Slot]:
    prefix = f"{path}." if path else ""
    packed = {"in_proj": module.in_proj_weight}
    separate = {
        "q_proj": module.q_proj_weight,
        "k_proj": module.k_proj_weight,
        "v_proj": module.v_proj_weight,
    }
    projections = packed if module.in_proj_weight is not None else separate
    weights: list[tuple[str, str, torch.Tensor]] = [
        (group, f"{prefix}{group}_weight", weight) for group, weight in projections.items()
    ]
    weights.append(("out_proj", f"{prefix}out_proj.weight", module.out_proj.weight))
    slots: list[Slot] = []
    for i, (group, name, weight) in enumerate(weights):
        slots += linear_slots(
            path,
            class_name(module),
            weight=name,
            shape=tuple(weight.shape),
            group=group,
            start=(2 * i, i),
        )
    return slots
