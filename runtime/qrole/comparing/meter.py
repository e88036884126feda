"""Measures every quantized operand, product and forward result of a run as it happens."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
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

_PROJECTIONS = 64
"""Random directions that long results are projected onto: whole exact products would cost as much
as the model itself."""
_EXACT_ROWS = 64
"""Rows of long results that are compared element by element: those with the largest errors."""

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
        error: The results against the product of the unquantized operands, both projected where
            they are long.
        max_abs_err: Largest absolute error in the rows that were compared.
        compared: Elements in them.
        numel: Elements of the results.
    """

    error: ErrorMoments = field(default_factory=ErrorMoments)
    max_abs_err: float = 0.0
    compared: int = 0
    numel: int = 0

    @property
    def coverage(self) -> float:
        """Share of the results that was compared element by element."""
        return self.compared / self.numel

    def add(
        self,
        left_MK: torch.Tensor,
        right_KN: torch.Tensor,
        result_MN: torch.Tensor,
        bias_N: torch.Tensor | None,
    ) -> None:
        """Adds one result."""
        self.numel += result_MN.numel()
        estimate = ErrorMoments()
        if _is_long(left_MK, right_KN):
            estimate, row_errors = _projected(left_MK, right_KN, result_MN, bias_N)
            largest = row_errors.topk(_EXACT_ROWS)
            estimate.error_sq -= largest.values.sum().item()
            left_MK, result_MN = left_MK[largest.indices], result_MN[largest.indices]
        exact = left_MK @ right_KN
        found = ErrorMoments()
        found.add(exact if bias_N is None else exact.add_(bias_N), result_MN)
        self.max_abs_err = max(self.max_abs_err, found.max_abs_err)
        self.compared += result_MN.numel()
        if estimate.numel:
            estimate.error_sq += found.error_sq
        self.error.merge(estimate if estimate.numel else found)


def _projected(
    left_MK: torch.Tensor,
    right_KN: torch.Tensor,
    result_MN: torch.Tensor,
    bias_N: torch.Tensor | None,
) -> tuple[ErrorMoments, torch.Tensor]:
    """Estimates from projections of result and exact product, and the squared error of each row.

    The norm of the result is taken of all of it, and that of the exact product by its ratio to it:
    a few large columns would spoil both as estimates, and do not spoil the ratio.
    """
    projection = _projection(right_KN.shape[1], right_KN.device)
    exact = left_MK.float() @ (right_KN.float() @ projection)
    if bias_N is not None:
        exact += bias_N.float() @ projection
    projected = result_MN.float() @ projection
    found = ErrorMoments()
    found.add(exact, projected)
    norm_sq = torch.linalg.vector_norm(result_MN, dtype=torch.float32).item() ** 2
    if found.test_sq:
        found.reference_sq *= norm_sq / found.test_sq
        found.test_sq = norm_sq
    return found, (projected - exact).square().sum(1)


def _is_long(left_MK: torch.Tensor, right_KN: torch.Tensor) -> bool:
    """Whether projecting takes less than half as long as the product."""
    (rows, inner), columns = left_MK.shape, right_KN.shape[1]
    projecting = _PROJECTIONS * (rows * inner + inner * columns + rows * columns)
    return rows > _EXACT_ROWS and 2 * projecting < rows * inner * columns


@cache
def _projection(columns: int, device: torch.device) -> torch.Tensor:
    """Fp32 signs (columns, _PROJECTIONS) that keep the expected norm of what they multiply."""
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (columns, _PROJECTIONS), generator=generator)
    return ((2 * signs - 1) / math.sqrt(_PROJECTIONS)).to(device)


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
        """Adds one GEMM, against the same product of unquantized operands."""
        if not result.numel():
            return
        stats = self.gemms[(layer, gemm)]
        with torch.no_grad():
            stats.add(left, right, result, bias)
        if not math.isfinite(stats.error.error_sq):
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
