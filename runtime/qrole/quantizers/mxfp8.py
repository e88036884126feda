"""MXFP8: one power-of-two scale per 32 elements, or per 32x32 block."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from qrole.dtypes import DType, fp8_element
from qrole.quantizers.base import OperandFormat, Quantizer
from qrole.quantizers.tensor import Representation
from qrole.roles import Usage

if TYPE_CHECKING:
    import torch

    from qrole_kernels.operand import Operand

__all__ = ["MXFP8Quantizer"]

_BLOCK = 32


class MXFP8Quantizer(Quantizer):
    """MXFP8.

    Row-wise blocks (1, 32) and column-wise blocks (32, 1) are both quantized from the original
    tensor; column-wise data is not transposed. In 2D mode one scale per (32, 32) block is
    repeated into both compact layouts and the data is equal.

    Args:
        fp8_dtype: E4M3 or E5M2.
        rowwise: Make row-wise data.
        columnwise: Make column-wise data.
        with_2d_quantization: Blocks of 32x32, meant for weights.
    """

    options: ClassVar[tuple[str, ...]] = ("fp8_dtype", "with_2d_quantization")

    def __init__(
        self,
        fp8_dtype: DType,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        with_2d_quantization: bool = False,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = DType.cast(fp8_dtype)
        fp8_element(self.dtype)
        self.with_2d_quantization = with_2d_quantization

    @property
    def fp8_dtype(self) -> DType:
        """The constructor's keyword for `dtype`."""
        return self.dtype

    @property
    def element(self) -> str:
        """`e4m3` or `e5m2`."""
        return fp8_element(self.dtype)

    @property
    @override
    def rowwise_format(self) -> OperandFormat:
        return self._format((1, _BLOCK))

    @property
    @override
    def columnwise_format(self) -> OperandFormat:
        return self._format((_BLOCK, 1))

    def _format(self, block: tuple[int, int]) -> OperandFormat:
        block = (_BLOCK, _BLOCK) if self.with_2d_quantization else block
        return OperandFormat("mxfp8", self.element, block, "e8m0")

    @property
    @override
    def label(self) -> str:
        return f"MXFP8 {self.element.upper()}{' 2D' if self.with_2d_quantization else ''}"

    @override
    def encode(
        self, x_MK: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[Representation | None, Representation | None]:
        if self.with_2d_quantization:
            return self._encode_square(x_MK)
        return (
            self._quantize(x_MK, 1, _BLOCK) if self.rowwise_usage else None,
            self._quantize(x_MK, _BLOCK, 1) if self.columnwise_usage else None,
        )

    def _quantize(self, x_MK: torch.Tensor, rows: int, columns: int) -> Representation:
        from qrole_kernels import ops

        return Representation(*ops.quantize_mxfp8(x_MK, self.element, rows, columns))

    def _encode_square(
        self, x_MK: torch.Tensor
    ) -> tuple[Representation | None, Representation | None]:
        """One scale per 32x32 block, repeated into the row-wise and column-wise layouts."""
        square = self._quantize(x_MK, _BLOCK, _BLOCK)
        scales, (rows, columns) = square.scale_inv, x_MK.shape
        assert scales is not None, "blocks have scales"
        rowwise = columnwise = None
        if self.rowwise_usage:
            rowwise = Representation(square.data, scales.repeat_interleave(_BLOCK, 0)[:rows])
        if self.columnwise_usage:
            repeated = scales.repeat_interleave(_BLOCK, 1)[:, :columns]
            columnwise = Representation(square.data, repeated)
        return rowwise, columnwise

    @override
    def decode(
        self, data: Representation, usage: Usage, shape: tuple[int, int], dtype: torch.dtype
    ) -> torch.Tensor:
        from qrole_kernels import ops

        assert data.scale_inv is not None, "blocks have scales"
        rows, columns = (1, _BLOCK) if usage is Usage.ROWWISE else (_BLOCK, 1)
        return ops.dequantize_mxfp8(data.data, data.scale_inv, self.element, rows, columns, dtype)

    @override
    def operand(self, data: Representation, usage: Usage, shape: tuple[int, int]) -> Operand:
        from qrole_kernels.operand import Operand

        codes, scales = data.data, data.scale_inv
        if usage is Usage.COLUMNWISE:
            assert scales is not None, "blocks have scales"
            codes, scales = codes.t(), scales.t()
        return Operand("mxfp8", codes, scales, element=self.element)
