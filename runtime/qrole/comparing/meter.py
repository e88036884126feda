"""Measures every quantized operand, product and forward result of a run as it happens."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from qrole.comparing.codes import nonzero_codes, saturated, scale_values
from qrole.comparing.difference import Difference
from qrole.comparing.moments import ErrorMoments, Spread
from qrole.execute import Layer, Observer
from qrole.quantizers import HybridQuantizer
from qrole.roles import Gemm, Slot, Usage

if TYPE_CHECKING:
    from qrole.quantizers.base import OperandFormat, Quantizer
    from qrole.quantizers.tensor import QuantizedTensor, Representation

__all__ = ["Meter", "ProductStats", "RepresentationStats", "Tape", "all_finite"]

_EXACT_ROWS = 256
"""Rows of each result for which the exact product is computed beside it. All rows would cost as
much as the model itself; the errors of this many are known to a fraction of a dB."""

Tape = dict[tuple[Layer, int], list[torch.Tensor]]


@dataclass
class RepresentationStats:
    """One representation of one slot, over all tensors seen.

    Attributes:
        error: Dequantized tensor against the tensor.
        amax: Largest magnitude of the last tensor (TransformerEngine's cur_amax).
        smallest: Smallest nonzero magnitude seen.
        largest: Largest magnitude seen.
        coded: Elements whose codes were looked at; 0 for formats that have no codes.
        nonzero: Nonzero elements among them.
        nonzero_codes: Codes that are not zero.
        saturated: Elements beyond what their scale can hold.
        bounded: Elements that `saturated` was counted among.
        scales: The scales' values, as multipliers of the codes.
    """

    error: ErrorMoments = field(default_factory=ErrorMoments)
    amax: float = 0.0
    smallest: float = math.inf
    largest: float = 0.0
    coded: int = 0
    nonzero: int = 0
    nonzero_codes: int = 0
    saturated: int = 0
    bounded: int = 0
    scales: Spread = field(default_factory=Spread)

    def merge(self, other: RepresentationStats) -> None:
        """Adds a later tensor's statistics."""
        self.error.merge(other.error)
        self.amax = other.amax
        self.smallest = min(self.smallest, other.smallest)
        self.largest = max(self.largest, other.largest)
        for name in ("coded", "nonzero", "nonzero_codes", "saturated", "bounded"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.scales.merge(other.scales)

    @property
    def dynamic_range(self) -> float | None:
        """log2(amax) - log2(smallest nonzero magnitude); None for tensors of zeros."""
        if not 0.0 < self.largest < math.inf:
            return None
        return math.log2(self.largest) - math.log2(self.smallest)


@dataclass
class ProductStats:
    """One GEMM of one layer, over all its results.

    Attributes:
        error: Rows of the results against the product of the unquantized operands.
        numel: Elements of the results, compared or not.
    """

    error: ErrorMoments = field(default_factory=ErrorMoments)
    numel: int = 0

    @property
    def coverage(self) -> float:
        """Share of the results that was compared."""
        return self.error.numel / self.numel


class Meter(Observer):
    """Accumulates statistics per slot and representation, per GEMM, and per layer.

    Attributes:
        slots: By slot id and usage.
        gemms: By layer and GEMM: result against the product of the unquantized operands.
        layers: Forward results against the reference run's.
        rerouted: Calls that had no counterpart of equal shape in the reference run.
        first_nonfinite: Where NaN or infinity first appeared, in words; `""` if nowhere.
    """

    wants_operands = True

    def __init__(self) -> None:
        self.slots: dict[tuple[str, Usage], RepresentationStats] = defaultdict(RepresentationStats)
        self.gemms: dict[tuple[Layer, Gemm], ProductStats] = defaultdict(ProductStats)
        self.layers: dict[Layer, ErrorMoments] = defaultdict(ErrorMoments)
        self.rerouted: dict[Layer, int] = defaultdict(int)
        self.first_nonfinite = ""
        self._last: tuple[object, dict[Usage, RepresentationStats]] = (None, {})
        self._tape: Tape = {}
        self._position: dict[tuple[Layer, int], int] = defaultdict(int)

    def compare_layers_with(self, tape: Tape) -> None:
        """Begins a batch: forward results are compared with those of the reference run."""
        self._tape = tape
        self._position.clear()

    def operand(
        self, slot: Slot, copy: int, tensor: torch.Tensor, quantized: QuantizedTensor
    ) -> None:
        """Adds one quantized tensor to its slot."""
        if not tensor.numel():
            return
        # Layers that read one input (queries, keys, values) are told of one and the same object.
        if quantized is not self._last[0]:
            self._last = quantized, self._measured(tensor, quantized)
        for usage, found in self._last[1].items():
            stats = self.slots[(slot.id, usage)]
            stats.merge(found)
            if not math.isfinite(stats.error.error_sq):
                self._blame(f"{slot.operand} of {slot.module or '.'}, {usage}")

    def _measured(
        self, tensor: torch.Tensor, quantized: QuantizedTensor
    ) -> dict[Usage, RepresentationStats]:
        x_MK = tensor.detach().reshape(-1, tensor.shape[-1])
        found: dict[Usage, RepresentationStats] = {}
        for usage in Usage:
            data, form = getattr(quantized, usage.value), quantized.format_of(usage)
            if data is None or form.family == "high_precision":
                continue
            if found and _same_values(quantized.quantizer):
                found[usage] = found[Usage.ROWWISE]
                continue
            stats = RepresentationStats()
            dequantized = quantized.dequantize(torch.float32, usage)
            facts = stats.error.add(x_MK, dequantized.reshape(x_MK.shape))
            stats.amax, stats.largest = facts.amax, facts.amax
            stats.smallest = facts.smallest
            if form.family != "custom":
                _add_codes(stats, x_MK, facts, data, form)
            found[usage] = stats
        return found

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
        """Adds one GEMM, against the same product of unquantized operands in some of its rows."""
        rows = slice(None, None, -(-result.shape[0] // _EXACT_ROWS))
        with torch.no_grad():
            exact = torch.mm(left[rows], right)
            exact = exact if bias is None else exact.add_(bias)
        stats = self.gemms[(layer, gemm)]
        stats.numel += result.numel()
        stats.error.add(exact, result[rows])
        # All rows of fprop are looked at as outputs.
        finite = math.isfinite(stats.error.error_sq)
        if not finite or (gemm is not Gemm.FPROP and not all_finite(result)):
            self._blame(f"{gemm} of {layer.name}")

    def output(self, layer: Layer, copy: int, output_MN: torch.Tensor) -> None:
        """Compares a forward result with the reference run's of the same call."""
        key = (layer, copy)
        index = self._position[key]
        self._position[key] += 1
        kept = self._tape.get(key, [])
        if index >= len(kept) or kept[index].shape != output_MN.shape:
            self.rerouted[layer] += 1
            finite = all_finite(output_MN)
        else:
            moments = self.layers[layer]
            moments.add(kept[index], output_MN)
            finite = not moments.nonfinite
        if not finite:
            self._blame(f"output of {layer.name}")

    def _blame(self, where: str) -> None:
        self.first_nonfinite = self.first_nonfinite or where


def all_finite(x: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite; one pass, unless there is one."""
    return math.isfinite(torch.sum(x, dtype=torch.float32).item()) or bool(torch.isfinite(x).all())


def _same_values(quantizer: Quantizer) -> bool:
    """Whether row-wise and column-wise data are one quantization, stored twice."""
    form = quantizer.rowwise_format
    square = form.block is None or form.block[0] == form.block[1]
    return (
        square
        and form == quantizer.columnwise_format
        and form.family != "custom"
        and not isinstance(quantizer, HybridQuantizer)
    )


def _add_codes(
    stats: RepresentationStats,
    x_MK: torch.Tensor,
    facts: Difference,
    data: Representation,
    form: OperandFormat,
) -> None:
    stats.coded, stats.nonzero = facts.numel, facts.nonzero
    stats.nonzero_codes = nonzero_codes(data.data, form.element)
    scales = scale_values(data, form)
    beyond = saturated(x_MK, data, form, scales)
    if beyond is not None:
        stats.saturated, stats.bounded = beyond, facts.numel
    if scales is not None:
        stats.scales.add(scales)
