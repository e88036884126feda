"""FP8 with one fp32 scale per 1x128 (1D) or 128x128 (2D) block."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from qrole.dtypes import DType, fp8_element
from qrole.errors import ConfigError
from qrole.quantizers.base import OperandFormat, Quantizer
from qrole.quantizers.tensor import Representation
from qrole.roles import Usage

if TYPE_CHECKING:
    import torch

    from qrole_kernels.operand import Operand

__all__ = ["Float8BlockQuantizer"]

_BLOCK = 128


class Float8BlockQuantizer(Quantizer):
    """FP8 in blocks of 128.

    1D: row-wise blocks (1, 128); column-wise blocks (128, 1), quantized from the original tensor.
    2D: blocks (128, 128), equal values in both directions.

    Args:
        fp8_dtype: E4M3 or E5M2.
        rowwise: Make row-wise data; required, as in TransformerEngine.
        columnwise: Make column-wise data (K, M); required.
        amax_epsilon: Floor of a block's amax, >= 0.
        force_pow_2_scales: Round scales down to powers of two.
        block_scaling_dim: 1 or 2.
    """

    options: ClassVar[tuple[str, ...]] = (
        "fp8_dtype",
        "amax_epsilon",
        "force_pow_2_scales",
        "block_scaling_dim",
    )

    def __init__(
        self,
        fp8_dtype: DType,
        *,
        rowwise: bool,
        columnwise: bool,
        amax_epsilon: float = 0.0,
        force_pow_2_scales: bool = True,
        block_scaling_dim: int = 2,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = DType.cast(fp8_dtype)
        fp8_element(self.dtype)
        if block_scaling_dim not in (1, 2):
            raise ConfigError(
                f"block_scaling_dim={block_scaling_dim!r}",
                expected="1 (blocks of 1x128) or 2 (blocks of 128x128)",
                hint="use 1 for activations and gradients, 2 for weights",
            )
        self.block_len = _BLOCK
        self.amax_epsilon = amax_epsilon
        self.force_pow_2_scales = force_pow_2_scales
        self.block_scaling_dim = block_scaling_dim

    @property
    def fp8_dtype(self) -> DType:
        """The constructor's keyword for `dtype`."""
        return self.dtype

    @property
    def element(self) -> str:
        """`e4m3` or `e5m2`."""
        return fp8_element(self.dtype)

    @property
    def _block_rows(self) -> int:
        return 1 if self.block_scaling_dim == 1 else _BLOCK

    @property
    @override
    def rowwise_format(self) -> OperandFormat:
        return self._format((self._block_rows, _BLOCK))

    @property
    @override
    def columnwise_format(self) -> OperandFormat:
        return self._format((_BLOCK, self._block_rows))

    def _format(self, block: tuple[int, int]) -> OperandFormat:
        scale = "fp32_pow2" if self.force_pow_2_scales else "fp32"
        return OperandFormat("fp8_block", self.element, block, scale)

    @property
    @override
    def label(self) -> str:
        scales = "" if self.force_pow_2_scales else " fp32 scales"
        return f"FP8 block {self._block_rows}x{_BLOCK} {self.element.upper()}{scales}"

    @override
    def encode(
        self, x_MK: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[Representation | None, Representation | None]:
        if self.block_scaling_dim == 2:
            both = self._quantize(x_MK)
            assert both.scale_inv is not None, "blocks have scales"
            flipped = Representation(both.data.t(), both.scale_inv.t())
            return (
                both if self.rowwise_usage else None,
                flipped if self.columnwise_usage else None,
            )
        return (
            self._quantize(x_MK) if self.rowwise_usage else None,
            self._quantize(x_MK.t()) if self.columnwise_usage else None,
        )

    def _quantize(self, x: torch.Tensor) -> Representation:
        from qrole_kernels import ops

        return Representation(
            *ops.quantize_fp8_block(
                x, self.element, self._block_rows, self.force_pow_2_scales, self.amax_epsilon
            )
        )

    @override
    def decode(
        self, data: Representation, usage: Usage, shape: tuple[int, int], dtype: torch.dtype
    ) -> torch.Tensor:
        from qrole_kernels import ops

        assert data.scale_inv is not None, "blocks have scales"
        matrix = ops.dequantize_fp8_block(
            data.data, data.scale_inv, self.element, self._block_rows, dtype
        )
        return matrix if usage is Usage.ROWWISE else matrix.t()

    @override
    def operand(self, data: Representation, usage: Usage, shape: tuple[int, int]) -> Operand:
        from qrole_kernels.operand import Operand

        name = f"fp8_block_{self.block_scaling_dim}d"
        return Operand(name, data.data, data.scale_inv, element=self.element)
