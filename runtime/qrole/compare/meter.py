"""Measures every quantized operand and product of a run as it happens."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from qrole.compare.moments import ErrorMoments, Spread
from qrole.execute import Layer, Observer
from qrole.roles import Gemm, Slot, Usage

if TYPE_CHECKING:
    from qrole.quantizers.base import OperandFormat
    from qrole.quantizers.tensor import QuantizedTensor, Representation

__all__ = ["Meter", "RepresentationStats"]

_ELEMENT_MAX = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0}


@dataclass
class RepresentationStats:
    """One representation of one slot, over all tensors seen.

    Attributes:
        error: Dequantized tensor against the tensor.
        amax: Largest magnitude of the last tensor (TransformerEngine's cur_amax).
        smallest: Smallest nonzero magnitude seen.
        largest: Largest magnitude seen.
        nonzero: Nonzero elements.
        nonzero_codes: Codes that are not zero.
        coded: Elements whose codes were counted; 0 for formats that have no codes.
        saturated: Elements beyond what their scale can hold.
        scales: The scales' values, as multipliers of the codes.
    """

    error: ErrorMoments = field(default_factory=ErrorMoments)
    amax: float = 0.0
    smallest: float = float("inf")
    largest: float = 0.0
    nonzero: int = 0
    nonzero_codes: int = 0
    coded: int = 0
    saturated: int = 0
    scales: Spread = field(default_factory=Spread)

    @property
    def dynamic_range(self) -> float | None:
        """log2(amax) - log2(smallest nonzero magnitude); None for tensors of zeros."""
        if not self.largest or not math.isfinite(self.largest):
            return None
        return math.log2(self.largest) - math.log2(self.smallest)


class Meter(Observer):
    """Accumulates statistics per slot and representation, and per GEMM.

    Attributes:
        slots: By slot id and usage.
        gemms: By layer and GEMM: result against the product of the unquantized operands.
        first_nonfinite: Where NaN or infinity first appeared, in words; `""` if nowhere.
    """

    wants_operands = True

    def __init__(self) -> None:
        self.slots: dict[tuple[str, Usage], RepresentationStats] = defaultdict(RepresentationStats)
        self.gemms: dict[tuple[Layer, Gemm], ErrorMoments] = defaultdict(ErrorMoments)
        self.first_nonfinite = ""

    def operand(
        self, slot: Slot, copy: int, tensor: torch.Tensor, quantized: QuantizedTensor
    ) -> None:
        """Adds one quantized tensor to its slot."""
        for usage in Usage:
            data = getattr(quantized, usage.value)
            form = quantized.format_of(usage)
            if data is None or form.family == "high_precision":
                continue
            stats = self.slots[(slot.id, usage)]
            dequantized = quantized.dequantize(torch.float32, usage)
            x_MK = tensor.detach().float().reshape(-1, tensor.shape[-1])
            stats.error.add(x_MK, dequantized.reshape(x_MK.shape))
            _add_range(stats, x_MK)
            _add_codes(stats, x_MK, data, form)
            if stats.error.nonfinite:
                self._blame(f"{slot.operand} of {slot.module}, {usage}")

    def product(
        self,
        layer: Layer,
        gemm: Gemm,
        copy: int,
        left: torch.Tensor,
        right: torch.Tensor,
        result: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> None:
        """Adds one GEMM, against the same product of unquantized operands."""
        with torch.no_grad():
            exact = torch.mm(left, right) if bias is None else torch.addmm(bias, left, right)
        moments = self.gemms[(layer, gemm)]
        moments.add(exact, result)
        if moments.nonfinite:
            self._blame(f"{gemm} of {layer.name}")

    def _blame(self, where: str) -> None:
        self.first_nonfinite = self.first_nonfinite or where


def _add_range(stats: RepresentationStats, x_MK: torch.Tensor) -> None:
    magnitude = x_MK.abs()
    amax = float(magnitude.max())
    stats.amax = amax
    stats.largest = max(stats.largest, amax)
    smallest = float(magnitude.masked_fill_(magnitude == 0, float("inf")).min())
    stats.smallest = min(stats.smallest, smallest)


def _add_codes(
    stats: RepresentationStats, x_MK: torch.Tensor, data: Representation, form: OperandFormat
) -> None:
    if form.element not in _ELEMENT_MAX:
        return
    stats.coded += x_MK.numel()
    stats.nonzero += int(torch.count_nonzero(x_MK))
    stats.nonzero_codes += _nonzero_codes(data.data, form.element)
    scales = _scale_values(data, form)
    if scales is not None:
        stats.scales.add(scales)


def _nonzero_codes(codes: torch.Tensor, element: str) -> int:
    if element == "e2m1":
        low, high = codes & 0x07, codes & 0x70
        return int(torch.count_nonzero(low)) + int(torch.count_nonzero(high))
    return int(torch.count_nonzero(codes & 0x7F))


def _scale_values(data: Representation, form: OperandFormat) -> torch.Tensor | None:
    """What each code is multiplied by, in fp32, in the layout of the scales."""
    if data.scale_inv is None:
        return None
    if form.scale == "e8m0":
        return torch.exp2(data.scale_inv.float() - 127.0)
    if form.scale == "e4m3":
        assert data.amax is not None, "NVFP4 has an amax"
        decoded = data.scale_inv.view(torch.float8_e4m3fn).float()
        amax = data.amax.float()
        factor = amax / (6.0 * form.e4m3_max)
        return decoded * (factor.unsqueeze(-1) if factor.dim() else factor)
    return data.scale_inv.float()
