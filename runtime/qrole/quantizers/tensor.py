"""A tensor in quantized form: raw codes and scales of up to two representations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qrole.errors import OperandError
from qrole.roles import Usage

if TYPE_CHECKING:
    import torch

    from qrole.quantizers.base import OperandFormat, Quantizer

__all__ = ["QuantizedTensor", "QuantizedTensorStorage", "Representation"]


@dataclass(frozen=True)
class Representation:
    """Raw data of one representation of a matrix (M, K).

    Orientation of column-wise data: (K, M) where the format's data is transposed (FP8 per tensor,
    FP8 block, NVFP4, MXFP4), (M, K) otherwise (MXFP8, high precision).

    Attributes:
        data: Codes, uint8, two to a byte for E2M1; the high-precision tensor itself where nothing
            is quantized.
        scale_inv: Compact scales: fp32, or raw E8M0 / E4M3 bytes; None without scales.
        amax: fp32 scalar, or one per row of `data`; None where the format has none.
    """

    data: torch.Tensor
    scale_inv: torch.Tensor | None = None
    amax: torch.Tensor | None = None


class QuantizedTensorStorage:
    """Base of everything that a quantizer makes.

    A quantizer class written for TransformerEngine derives its own data from this, with the
    attributes that `qrole.custom_gemm` names.
    """


@dataclass(eq=False)
class QuantizedTensor(QuantizedTensorStorage):
    """What a quantizer makes of a tensor.

    Invariants: at least one representation is there; both stand for the same tensor.

    Attributes:
        shape: Shape of the tensor before it was flattened to (M, K).
        dtype: Its dtype, which `dequantize` gives back.
        quantizer: Who made it; knows how to decode it.
        rowwise: The representation that fprop and dgrad's gradient read, when it was made.
        columnwise: The one that wgrad and dgrad's weight read, when it was made.
    """

    shape: torch.Size
    dtype: torch.dtype
    quantizer: Quantizer
    rowwise: Representation | None = None
    columnwise: Representation | None = None

    def __post_init__(self) -> None:
        assert self.rowwise is not None or self.columnwise is not None, "a representation is there"

    @property
    def rowwise_data(self) -> torch.Tensor | None:
        """Row-wise codes (M, K), or (M, ceil(K/2)) packed."""
        return self.rowwise.data if self.rowwise else None

    @property
    def rowwise_scale_inv(self) -> torch.Tensor | None:
        """Compact row-wise scales."""
        return self.rowwise.scale_inv if self.rowwise else None

    @property
    def amax_rowwise(self) -> torch.Tensor | None:
        """Amax that the row-wise scales refer to: scalar, or (M,) when row-scaled."""
        return self.rowwise.amax if self.rowwise else None

    @property
    def columnwise_data(self) -> torch.Tensor | None:
        """Column-wise codes; see `Representation` for the orientation."""
        return self.columnwise.data if self.columnwise else None

    @property
    def columnwise_scale_inv(self) -> torch.Tensor | None:
        """Compact column-wise scales."""
        return self.columnwise.scale_inv if self.columnwise else None

    @property
    def amax_columnwise(self) -> torch.Tensor | None:
        """Amax that the column-wise scales refer to: scalar, or (K,) when row-scaled."""
        return self.columnwise.amax if self.columnwise else None

    @property
    def device(self) -> torch.device:
        """Where the data is."""
        present = self.rowwise or self.columnwise
        assert present is not None, "a representation is there"
        return present.data.device

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """(M, K): leading dimensions flattened."""
        columns = self.shape[-1] if self.shape else 1
        rows = 1
        for size in self.shape[:-1]:
            rows *= size
        return rows, columns

    def size(self, dim: int | None = None) -> torch.Size | int:
        """Shape before quantization, or one dimension of it."""
        return self.shape if dim is None else self.shape[dim]

    def format_of(self, usage: Usage | str) -> OperandFormat:
        """Number format of one representation, there or not."""
        if Usage(usage) is Usage.ROWWISE:
            return self.quantizer.rowwise_format
        return self.quantizer.columnwise_format

    def representation(self, usage: Usage | str) -> Representation:
        """One representation.

        Raises:
            OperandError: It was not made, or was dropped.
        """
        usage = Usage(usage)
        found = self.rowwise if usage is Usage.ROWWISE else self.columnwise
        if found is None:
            raise OperandError(
                f"a tensor quantized by {self.quantizer!r} has no {usage} data",
                expected=f"a tensor quantized with {usage} usage",
                hint=f"call quantizer.set_usage({usage}=True) before quantizing",
            )
        return found

    def dequantize(
        self, dtype: torch.dtype | None = None, direction: Usage | str | None = None
    ) -> torch.Tensor:
        """The tensor that the codes stand for, in its own shape, orientation and domain.

        Column-wise data is transposed back and the random Hadamard transform is undone.

        Args:
            dtype: Of the result; the original dtype where None.
            direction: `rowwise` or `columnwise`; None takes row-wise data where there is any.

        Raises:
            OperandError: That representation was not made.
        """
        if direction is None:
            direction = Usage.ROWWISE if self.rowwise is not None else Usage.COLUMNWISE
        usage = Usage(direction)
        matrix = self.quantizer.decode(
            self.representation(usage), usage, self.matrix_shape, dtype or self.dtype
        )
        return matrix.reshape(self.shape)

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Drops the representations that are no longer wanted.

        Raises:
            OperandError: One is wanted that is not there; it cannot be made from the other.
        """
        for usage, wanted in (
            (Usage.ROWWISE, rowwise_usage),
            (Usage.COLUMNWISE, columnwise_usage),
        ):
            if wanted:
                self.representation(usage)
            elif wanted is False:
                setattr(self, usage.value, None)

    def __repr__(self) -> str:
        made = " and ".join(u for u in ("rowwise", "columnwise") if getattr(self, u) is not None)
        return (
            f"QuantizedTensor({made}, shape={tuple(self.shape)}, dtype={self.dtype}, "
            f"quantizer={self.quantizer!r})"
        )
