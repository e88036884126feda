"""Keys and values that a model repeats for the queries that share them.

They are quantized before that, and their gradients after they have been summed up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Repeat", "repeated_by"]


@dataclass(frozen=True)
class Repeat:
    """A tensor (B, H, S, D) made from one of fewer heads, each of them repeated.

    Attributes:
        source: (B, G, S, D).
        shape: Of the made tensor.
        strides: Likewise.
        offset: Of its first element in its storage.
    """

    source: torch.Tensor
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def made(self, view: torch.Tensor) -> bool:
        """Whether a view of the made tensor's storage is all of it, in the same order."""
        same = tuple(view.shape) == self.shape and view.stride() == self.strides
        return same and view.storage_offset() == self.offset


def repeated_by(function: Any, args: Any, kwargs: Any, result: Any) -> Repeat | None:
    """What a call repeated: `x[:, :, None].expand(...).reshape(...)` or `repeat_interleave`."""
    source = None
    if function in (torch.Tensor.reshape, torch.reshape):
        given = args[0]
        expanded = given.dim() == 5 and given.shape[2] > 1 and given.stride(2) == 0
        if expanded and _repeats(given.select(2, 0), given.shape[2], result):
            source = given.select(2, 0)
    elif function in (torch.repeat_interleave, torch.Tensor.repeat_interleave):
        given, times = args[0], args[1] if len(args) > 1 else kwargs.get("repeats")
        dim = args[2] if len(args) > 2 else kwargs.get("dim")
        if given.dim() == 4 and dim in (1, -3) and isinstance(times, int):
            source = given if _repeats(given, times, result) else None
    if source is None:
        return None
    return Repeat(source, tuple(result.shape), result.stride(), int(result.storage_offset()))


def _repeats(source: torch.Tensor, times: int, result: torch.Tensor) -> bool:
    """Whether the shapes are those of heads repeated, in memory of their own."""
    batch, heads, *rest = source.shape
    fits = list(result.shape) == [batch, heads * times, *rest]
    return fits and result.untyped_storage()._cdata != source.untyped_storage()._cdata
