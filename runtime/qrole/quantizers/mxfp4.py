"""MXFP4 of the OCP MX specification; TransformerEngine has no such quantizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from qrole.errors import ConfigError
from qrole.quantizers.base import OperandFormat, Quantizer
from qrole.quantizers.tensor import Representation
from qrole.roles import Usage

if TYPE_CHECKING:
    import torch

    from qrole_kernels.operand import Operand

__all__ = ["MXFP4Quantizer"]

_RULES = ("rceil", "floor", "even")


class MXFP4Quantizer(Quantizer):
    """E2M1 elements with one power-of-two scale per 32.

    Row-wise blocks (1, 32) and column-wise blocks (32, 1), both from the original tensor;
    column-wise data is packed along M, so it is stored transposed (K, ceil(M/2)).

    Args:
        scale_rule: `rceil` rounds amax/6 up to a power of two; `floor` is the OCP rule and lets
            values above 6 saturate; `even` rounds the amax to E2M1's mantissa first.
        rowwise: Make row-wise data.
        columnwise: Make column-wise data.
    """

    options: ClassVar[tuple[str, ...]] = ("scale_rule",)

    def __init__(
        self, scale_rule: str = "rceil", *, rowwise: bool = True, columnwise: bool = True
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        if scale_rule not in _RULES:
            raise ConfigError(
                f"scale_rule={scale_rule!r}",
                expected=f"one of {', '.join(_RULES)}",
                hint="rceil never saturates and is the default",
            )
        self.scale_rule = scale_rule

    @property
    @override
    def rowwise_format(self) -> OperandFormat:
        return OperandFormat("mxfp4", "e2m1", (1, 32), "e8m0", scale_rule=self.scale_rule)

    @property
    @override
    def columnwise_format(self) -> OperandFormat:
        return OperandFormat("mxfp4", "e2m1", (32, 1), "e8m0", scale_rule=self.scale_rule)

    @property
    @override
    def label(self) -> str:
        return "MXFP4" if self.scale_rule == "rceil" else f"MXFP4 {self.scale_rule}"

    @override
    def encode(
        self, x_MK: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[Representation | None, Representation | None]:
        from qrole_kernels import ops

        def made(x: torch.Tensor) -> Representation:
            return Representation(*ops.quantize_mxfp4(x, self.scale_rule))

        return (
            made(x_MK) if self.rowwise_usage else None,
            made(x_MK.t()) if self.columnwise_usage else None,
        )

    @override
    def decode(
        self, data: Representation, usage: Usage, shape: tuple[int, int], dtype: torch.dtype
    ) -> torch.Tensor:
        from qrole_kernels import ops

        assert data.scale_inv is not None, "blocks have scales"
        rows, columns = shape
        matrix = ops.dequantize_mxfp4(data.data, data.scale_inv, dtype)
        return matrix[:, :columns] if usage is Usage.ROWWISE else matrix[:, :rows].t()

    @override
    def operand(self, data: Representation, usage: Usage, shape: tuple[int, int]) -> Operand:
        from qrole_kernels.operand import Operand

        columns = shape[1] if usage is Usage.ROWWISE else shape[0]
        return Operand("mxfp4", data.data, data.scale_inv, columns=columns)
