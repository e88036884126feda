"""Experts' matrices that a model copies side by side, one per row of its input: `weight[ids]`.

The products are then those of each expert's own matrix with the rows that chose it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["INDEXINGS", "Gather", "Picked", "gathered_rows"]

INDEXINGS = frozenset({torch.Tensor.__getitem__, torch.index_select, torch.Tensor.index_select})
"""Functions that may copy some matrices of a tensor."""

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


@dataclass(frozen=True)
class Picked:
    """Matrices of a stack: `tensor[i]` is `matrices[experts[i]]`.

    Attributes:
        matrices: (E, rows, columns), a view of the weight.
        experts: Which matrix each place holds.
    """

    matrices: torch.Tensor
    experts: tuple[int, ...]


@dataclass(frozen=True)
class Gather:
    """A tensor (S, A, B) that was made by `source[experts]`.

    Attributes:
        source: (E, A, B).
        experts: S indices.
        strides: Of the made tensor.
        offset: Of its first element in its storage.
    """

    source: torch.Tensor
    experts: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, source: torch.Tensor, experts: torch.Tensor, made: torch.Tensor) -> Gather:
        """What indexing the source made."""
        ids = tuple(i % source.shape[0] for i in experts.tolist())
        return cls(source, ids, made.stride(), int(made.storage_offset()))

    def seen_by(self, view: torch.Tensor) -> Picked | None:
        """The source's matrices as a view of the made tensor shows them.

        A view may leave out places, rows and columns at either end, and transpose the matrices;
        None for any other.
        """
        step, *inner = self.strides
        if view.dim() != 3 or view.stride(0) != step or sorted(inner) == [0, 0]:
            return None
        swapped = list(view.stride()[1:]) == inner[::-1] != inner
        if not swapped and list(view.stride()[1:]) != inner:
            return None
        first, rest = divmod(int(view.storage_offset()) - self.offset, step)
        row, column = _position(rest, *inner)
        rows, columns = view.shape[1:] if not swapped else view.shape[:0:-1]
        matrices = self.source[:, row : row + rows, column : column + columns]
        if matrices.shape[1:] != (rows, columns):
            return None
        experts = self.experts[first : first + view.shape[0]]
        return Picked(matrices.mT if swapped else matrices, experts)


def _position(offset: int, row_stride: int, column_stride: int) -> tuple[int, int]:
    if row_stride >= column_stride:
        row, rest = divmod(offset, row_stride)
        return row, rest // column_stride
    column, rest = divmod(offset, column_stride)
    return rest // row_stride, column


def gathered_rows(
    function: Any, args: Any, kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Source and indices of such a call, where it copies matrices by their indices; or None."""
    if kwargs or args[0].dim() != 3:
        return None
    source, *index = args
    if function is not torch.Tensor.__getitem__:
        dim, *index = index
        if dim not in (0, -3):
            return None
    (ids,) = index
    if isinstance(ids, tuple):
        ids, *rest = ids
        if any(other is not Ellipsis and other != slice(None) for other in rest):
            return None
    known = isinstance(ids, torch.Tensor) and ids.dim() == 1 and ids.dtype in _INTEGERS
    return (source, ids) if known else None
