"""What is known of a tensor, kept with the memory that it lies in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    import torch

__all__ = ["StorageNotes"]

Note = TypeVar("Note")

_FEW = 32
"""Notes that are kept before one looks which storages are gone."""


class StorageNotes(Generic[Note]):
    """One note per storage, which every view of it shares; gone when the storage is.

    The weak reference also keeps the storage's address from being given to another one.
    """

    def __init__(self) -> None:
        self._notes: dict[int, tuple[Any, Note]] = {}
        self._most = _FEW

    def put(self, tensor: torch.Tensor, note: Note) -> None:
        """Notes something about the storage of a tensor."""
        if len(self._notes) >= self._most:
            self._notes = {a: n for a, n in self._notes.items() if not n[0].expired()}
            self._most = max(_FEW, len(self._notes) * 5 // 4)
        storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._notes[storage.cdata] = (storage, note)

    def get(self, tensor: torch.Tensor) -> Note | None:
        """What was noted about the storage of a tensor."""
        try:
            found = self._notes.get(tensor.untyped_storage()._cdata)
        except NotImplementedError:  # Subclasses may have none.
            return None
        return None if found is None or found[0].expired() else found[1]

    def drop(self, tensor: torch.Tensor) -> None:
        """Forgets what was noted about the storage of a tensor."""
        self._notes.pop(tensor.untyped_storage()._cdata, None)

    def clear(self) -> None:
        """Forgets everything."""
        self._notes.clear()
