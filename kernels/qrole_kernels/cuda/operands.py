"""The data of operands as products on CUDA want them in memory."""

import torch
from torch import Tensor
from torch.nn.functional import pad

ALIGNMENT = 16
"""Bytes: of the widest loads, and of what cuBLAS and copies to shared memory take at once."""
FP8_DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def aligned(x: Tensor, row_multiple: int = 1, col_multiple: int = ALIGNMENT) -> Tensor:
    """A matrix of bytes, contiguous from a multiple of 16 on, with zeros added to its sizes."""
    missing = -x.shape[0] % row_multiple, -x.shape[1] % col_multiple
    if any(missing):
        return pad(x, (0, missing[1], 0, missing[0])).contiguous()
    # Allocations start at multiples of more than this.
    is_aligned = x.storage_offset() % ALIGNMENT == 0
    return x.contiguous() if is_aligned else x.clone(memory_format=torch.contiguous_format)
