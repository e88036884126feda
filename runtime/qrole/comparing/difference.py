"""One pass over a pair of tensors: compiled on the CPU, in torch elsewhere."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

__all__ = ["Difference", "difference_of", "is_compiled", "pieces"]

_PIECE = 32768
_STRETCH = 1 << 20


@dataclass(frozen=True)
class Difference:
    """How a tensor differs from its reference, and what the reference holds.

    Attributes:
        numel: Elements.
        reference_sq: Sum of the squared reference.
        test_sq: Sum of the squared tensor under test.
        error_sq: Sum of the squared difference.
        max_abs_err: Largest absolute difference; not to be relied on beside NaN.
        amax: Largest magnitude of the reference; NaN where it holds one.
        smallest: Its smallest nonzero magnitude; infinite where all are zero.
        nonzero: Its nonzero elements.
    """

    numel: int = 0
    reference_sq: float = 0.0
    test_sq: float = 0.0
    error_sq: float = 0.0
    max_abs_err: float = 0.0
    amax: float = 0.0
    smallest: float = math.inf
    nonzero: int = 0

    def __add__(self, other: Difference) -> Difference:
        return Difference(
            self.numel + other.numel,
            self.reference_sq + other.reference_sq,
            self.test_sq + other.test_sq,
            self.error_sq + other.error_sq,
            max(self.max_abs_err, other.max_abs_err),
            other.amax if math.isnan(other.amax) else max(self.amax, other.amax),
            min(self.smallest, other.smallest),
            self.nonzero + other.nonzero,
        )


def difference_of(reference: torch.Tensor, test: torch.Tensor) -> Difference:
    """Compares two tensors of equal shape, any floating dtype and strides; squares are fp32."""
    a, b = _flat(reference), _flat(test)
    compare = _compiled if is_compiled(a) else _in_torch
    size = _STRETCH if a.dtype != torch.float32 or b.dtype != torch.float32 else max(a.numel(), 1)
    whole = Difference()
    for x, y in zip(torch.split(a, size), torch.split(b, size), strict=True):
        if x.numel():
            whole += compare(x.float(), y.float())
    return whole


def _flat(x: torch.Tensor) -> torch.Tensor:
    if not is_compiled(x):
        return x.contiguous().view(-1)
    from qrole_kernels.cpu_layout import row_major

    return row_major(x).view(-1)


def is_compiled(x: torch.Tensor) -> bool:
    """Whether there are compiled kernels for the tensor's device."""
    return x.device.type == "cpu" and importlib.util.find_spec("llvmlite") is not None


def _compiled(a: torch.Tensor, b: torch.Tensor) -> Difference:
    from qrole_kernels.cpu import difference as kernel

    head = a.numel() - a.numel() % kernel.STEP
    rest = _in_torch(a[head:], b[head:]) if head < a.numel() else Difference()
    if not head:
        return rest
    shape = (-(-head // kernel.CHUNK), len(kernel.STATISTICS), kernel.LANES)
    out = torch.empty(shape)
    kernel.host_difference(a.data_ptr(), b.data_ptr(), head, out.data_ptr())
    a_sq, b_sq, error_sq = out[:, :3].sum((0, 2), dtype=torch.float64).tolist()
    bits = out[:, 3:].view(torch.int32)
    max_error, amax = bits[:, :2].amax((0, 2)).view(torch.float32).tolist()
    smallest = bits[:, 2].amin().view(torch.float32).item()
    nonzero = int(bits[:, 3].sum())
    smallest = smallest if nonzero else math.inf
    return rest + Difference(head, a_sq, b_sq, error_sq, max_error, amax, smallest, nonzero)


def _in_torch(a: torch.Tensor, b: torch.Tensor) -> Difference:
    whole = Difference()
    for x, y in zip(pieces(a), pieces(b), strict=True):
        error, magnitude = y - x, x.abs()
        low, high = (value.item() for value in torch.aminmax(magnitude))
        zeros = 0
        if low == 0.0:
            zeros = int((magnitude == 0.0).sum())
            low = magnitude.masked_fill(magnitude == 0.0, math.inf).min().item()
        whole += Difference(
            x.numel(),
            torch.dot(x, x).item(),
            torch.dot(y, y).item(),
            torch.dot(error, error).item(),
            error.abs().max().item(),
            high,
            low,
            x.numel() - zeros,
        )
    return whole


def pieces(flat: torch.Tensor) -> Iterator[torch.Tensor]:
    """A flat tensor in pieces that stay in the cache and that torch does not spread over threads.

    Waking threads costs more than such a piece takes. Other devices get it whole.
    """
    size = _PIECE if flat.device.type == "cpu" else max(flat.numel(), 1)
    return iter(torch.split(flat, size))
