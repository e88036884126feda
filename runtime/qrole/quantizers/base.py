"""What every quantizer is: a frozen description of a number format that can be applied.

No quantizer module imports torch when it is imported; the data-free checkpoint path needs that.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    import torch
    from qrole.quantizers.tensor import QuantizedTensor

__all__ = ["OperandFormat", "Quantizer"]


@dataclass(frozen=True)
class OperandFormat:
    """The number format of one representation (row-wise or column-wise) of a tensor.

    Two operands can meet in a GEMM when `pairs_with` says so; equal formats have equal fields.

    Attributes:
        family: `high_precision`, `fp8_tensor`, `fp8_block`, `mxfp8`, `mxfp4` or `nvfp4`.
        element: `e4m3`, `e5m2`, `e2m1`; `""` for high precision.
        block: Elements that share a scale, as (rows, columns) of the tensor in its own orientation
            before any transpose; None for one scale per tensor. Row-wise MXFP8 is (1, 32),
            column-wise (32, 1).
        scale: `fp32`, `fp32_pow2`, `e8m0`, `e4m3`, or `""`.
        rht: The random Hadamard transform is applied before quantization.
        random_sign_mask: The transform's signs are the fixed random ones rather than all +1.
        stochastic_rounding: Elements are rounded stochastically.
        row_scaled: One global scale per row instead of per tensor (NVFP4).
        four_over_six: `""`, `mae` or `mse` (NVFP4).
        e4m3_max: Largest block scale, 448 or 256 (NVFP4); 0 elsewhere.
        scale_rule: Rounding of the MXFP4 scale: `rceil`, `floor` or `even`; `""` elsewhere.
        delayed: The scale comes from earlier steps (FP8 delayed scaling).
    """

    family: str
    element: str = ""
    block: tuple[int, int] | None = None
    scale: str = ""
    rht: bool = False
    random_sign_mask: bool = False
    stochastic_rounding: bool = False
    row_scaled: bool = False
    four_over_six: str = ""
    e4m3_max: int = 0
    scale_rule: str = ""
    delayed: bool = False

    @property
    def bits_per_element(self) -> float:
        """Storage bits per element, block scales included, per-tensor scales not."""
        element = {"e4m3": 8.0, "e5m2": 8.0, "e2m1": 4.0}.get(self.element, 16.0)
        if self.block is None or not self.scale:
            return element
        scale = 32.0 if self.scale.startswith("fp32") else 8.0
        return element + scale / (self.block[0] * self.block[1])


class Quantizer(ABC):
    """A number format with its options, for the row-wise and the column-wise representation.

    Options are fixed at construction and equality is by class and options. Usage flags
    (`rowwise_usage`, `columnwise_usage`) say which representations `quantize` makes; modules set
    them per pass as TransformerEngine's do, and they take no part in equality.

    Attributes:
        rowwise_usage: `quantize` makes row-wise data.
        columnwise_usage: `quantize` makes column-wise data.
        internal: Accepted for TransformerEngine's modules; has no meaning here.
        optimize_for_gemm: Likewise.
    """

    #: Names of the constructor keywords that identify the quantizer, in display order.
    options: ClassVar[tuple[str, ...]] = ()

    rowwise_usage: bool
    columnwise_usage: bool
    internal: bool
    optimize_for_gemm: bool

    def __init__(self, *, rowwise: bool, columnwise: bool) -> None:
        self.rowwise_usage = rowwise
        self.columnwise_usage = columnwise
        self.internal = False
        self.optimize_for_gemm = False

    @property
    @abstractmethod
    def rowwise_format(self) -> OperandFormat:
        """Format of the data that fprop (input, weight) and dgrad (grad_output) read."""

    @property
    @abstractmethod
    def columnwise_format(self) -> OperandFormat:
        """Format of the data that dgrad (weight) and wgrad (input, grad_output) read."""

    @property
    @abstractmethod
    def label(self) -> str:
        """A short name for tables: `MXFP8 E4M3`, `NVFP4 RHT SR`; equal quantizers share it."""

    @abstractmethod
    def quantize(
        self, tensor: torch.Tensor, *, generator: torch.Generator | None = None
    ) -> QuantizedTensor:
        """Quantizes a tensor of shape (..., K), seen as (M, K).

        Args:
            tensor: fp32, bf16 or fp16.
            generator: Random bits for stochastic rounding; None draws from torch's default.
        """

    def __call__(self, tensor: torch.Tensor) -> QuantizedTensor:
        """Same as `quantize`, as TransformerEngine's quantizers are called."""
        return self.quantize(tensor)

    def set_usage(self, *, rowwise: bool | None = None, columnwise: bool | None = None) -> None:
        """Changes which representations `quantize` makes; None leaves a flag as it is."""
        if rowwise is not None:
            self.rowwise_usage = rowwise
        if columnwise is not None:
            self.columnwise_usage = columnwise

    def copy(self) -> Self:
        """A quantizer of equal options whose usage flags are its own."""
        return copy.copy(self)

    def describe(self) -> dict[str, Any]:
        """The class name and the options as JSON values: what plans and manifests record."""
        return {
            "quantizer": type(self).__name__,
            **{k: _plain(getattr(self, k)) for k in self.options},
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quantizer):
            return NotImplemented
        return type(self) is type(other) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash((type(self), repr(self.describe())))

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.options)
        return f"{type(self).__name__}({inner})"


def _plain(value: Any) -> Any:
    """A constructor option as a JSON value; enum members and dtypes become their names."""
    if isinstance(value, Quantizer):
        return value.describe()
    if value is None or type(value) in (bool, int, float, str):
        return value
    return str(getattr(value, "name", value))
