"""Whose the operands of a product are that a module made by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from qrole.execute.storage_notes import StorageNotes
from qrole.quantizers.tensor import QuantizedTensor
from qrole.roles import Slot

__all__ = ["Seen", "SeenOperands"]


@dataclass(frozen=True)
class Seen:
    """Where a quantized tensor comes from.

    Attributes:
        slot: Its slot.
        copy: Index of the expert.
        tensor: The tensor before quantization, where the observer wants it.
    """

    slot: Slot
    copy: int
    tensor: torch.Tensor | None


class SeenOperands:
    """What was seen being quantized, known again by the memory of the codes.

    Autograd keeps the codes without the object around them, and the backward pass makes a new one.
    """

    def __init__(self) -> None:
        self._by_codes: StorageNotes[Seen] = StorageNotes()
        self._custom: WeakKeyDictionary[Any, Seen] = WeakKeyDictionary()

    def remember(self, made: Any, seen: Seen) -> None:
        """Notes where a quantized tensor comes from."""
        if not isinstance(made, QuantizedTensor):
            self._custom[made] = seen
            return
        for codes in _codes(made):
            self._by_codes.put(codes, seen)

    def recall(self, made: Any) -> Seen | None:
        """Where an operand comes from; None for one that nobody quantized."""
        if isinstance(made, QuantizedTensor):
            found = map(self._by_codes.get, _codes(made))
            return next((seen for seen in found if seen is not None), None)
        return None if isinstance(made, torch.Tensor) else self._custom.get(made)

    def clear(self) -> None:
        """Forgets everything."""
        self._by_codes.clear()
        self._custom.clear()


def _codes(made: QuantizedTensor) -> list[torch.Tensor]:
    return [data.data for data in (made.rowwise, made.columnwise) if data is not None]
