"""Operands of a backward pass as tensors that autograd keeps.

Only tensors that go through `save_for_backward` are checked for in-place changes and seen by
saved-tensor hooks (offloading, checkpointing).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qrole.quantizers import QuantizedTensor, Quantizer
from qrole.quantizers.tensor import Representation

__all__ = ["Operand", "restore_operands", "save_operands"]

#: A tensor, a quantized one, or what a quantizer written in Python made of it.
Operand = Any


@dataclass(frozen=True)
class _Columnwise:
    """A quantized operand without its column-wise data, which is all that it keeps.

    Attributes:
        shape: As in `QuantizedTensor`.
        dtype: Likewise.
        quantizer: Likewise.
        fields: Which of the representation's tensors there are.
    """

    shape: torch.Size
    dtype: torch.dtype
    quantizer: Quantizer
    fields: tuple[str, ...]

    def restored(self, tensors: Iterator[Tensor]) -> QuantizedTensor:
        data = Representation(**{name: next(tensors) for name in self.fields})
        return QuantizedTensor(self.shape, self.dtype, self.quantizer, columnwise=data)


def save_operands(ctx: Any, *operands: Operand | None) -> None:
    """Keeps what dgrad and wgrad read of fprop's operands: of quantized ones the column-wise data.

    Args:
        ctx: Context of the autograd function, which saves no other tensors.
        operands: None for one that the backward pass does not read.
    """
    tensors: list[Tensor] = []
    kept: list[Any] = []
    for operand in operands:
        if isinstance(operand, Tensor):
            tensors.append(operand)
            kept.append(Tensor)
        elif isinstance(operand, QuantizedTensor) and operand.columnwise is not None:
            given = vars(operand.columnwise)
            fields = tuple(name for name, value in given.items() if value is not None)
            tensors += [given[name] for name in fields]
            kept.append(_Columnwise(operand.shape, operand.dtype, operand.quantizer, fields))
        else:
            kept.append(operand)
    ctx.save_for_backward(*tensors)
    ctx.kept = kept


def restore_operands(ctx: Any) -> list[Operand]:
    """The operands that `save_operands` kept, in the same order."""
    tensors = iter(ctx.saved_tensors)
    restored: list[Operand] = []
    for kept in ctx.kept:
        if kept is Tensor:
            restored.append(next(tensors))
        else:
            restored.append(kept.restored(tensors) if isinstance(kept, _Columnwise) else kept)
    return restored
