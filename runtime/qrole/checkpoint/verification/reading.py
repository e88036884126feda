"""Stored tensors as torch tensors over mapped files, a range of rows at a time."""

from __future__ import annotations

import math
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

from qrole.checkpoint.headers import DTYPE_BITS, TensorInfo

if TYPE_CHECKING:
    import torch

__all__ = ["Reader"]


class Reader:
    """Maps the files of a checkpoint when they are first read."""

    def __init__(self) -> None:
        self._maps: dict[Path, mmap.mmap] = {}

    def raw(self, info: TensorInfo, first: int = 0, count: int | None = None) -> torch.Tensor:
        """Bytes of rows `first` to `first + count` of a stored tensor, uint8, one-dimensional."""
        import torch

        width = info.nbytes // info.shape[0] if info.shape and info.shape[0] else info.nbytes
        total = info.nbytes if count is None else count * width
        if not total:
            return torch.empty(0, dtype=torch.uint8)
        start = info.start + first * width
        return torch.frombuffer(self._map(info.file), dtype=torch.uint8, count=total, offset=start)

    def rows(self, info: TensorInfo, first: int = 0, count: int | None = None) -> torch.Tensor:
        """The same as a tensor of its own dtype: fp32, bf16, fp16, or raw uint8 for the rest."""
        import torch

        names = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
        raw = self.raw(info, first, count)
        itemsize = DTYPE_BITS[info.dtype] // 8
        if info.start % itemsize:
            raw = raw.clone()
        values = raw.view(names.get(info.dtype, torch.uint8))
        shape = list(info.shape) if count is None else [count, *info.shape[1:]]
        return values.reshape(shape if math.prod(shape) == values.numel() else [-1])

    def number(self, info: TensorInfo) -> float:
        """The value of a tensor of one fp32, bf16 or fp16."""
        return float(self.rows(info).reshape(-1)[0])

    def close(self) -> None:
        """Forgets the files; they are unmapped when no tensor looks at them any more."""
        self._maps.clear()

    def _map(self, path: Path) -> mmap.mmap:
        if path not in self._maps:
            fd = os.open(path, os.O_RDONLY)
            try:
                # Private and writable, because torch warns of buffers that are read-only.
                flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
                access = mmap.PROT_READ | mmap.PROT_WRITE
                self._maps[path] = mmap.mmap(fd, 0, flags=flags, prot=access)
            finally:
                os.close(fd)
        return self._maps[path]
