"""No quantization: the tensor stays in high precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from qrole.quantizers.base import OperandFormat, Quantizer
from qrole.quantizers.tensor import Representation
from qrole.roles import Usage

if TYPE_CHECKING:
    import torch

    from qrole_kernels.operand import Operand

__all__ = ["IdentityQuantizer"]


class IdentityQuantizer(Quantizer):
    """Keeps a tensor as it is; one buffer serves both directions.

    Args:
        dtype: Cast to this dtype; None keeps the tensor's own.
        rowwise: Make row-wise data.
        columnwise: Make column-wise data, the same buffer.
    """

    options: ClassVar[tuple[str, ...]] = ("dtype",)

    def __init__(
        self,
        *,
        dtype: torch.dtype | None = None,
        rowwise: bool = True,
        columnwise: bool = True,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = dtype

    @property
    @override
    def rowwise_format(self) -> OperandFormat:
        return OperandFormat("high_precision")

    @property
    @override
    def columnwise_format(self) -> OperandFormat:
        return OperandFormat("high_precision")

    @property
    @override
    def label(self) -> str:
        name = str(self.dtype).removeprefix("torch.") if self.dtype is not None else ""
        return f"high precision {name}".strip()

    @override
    def encode(
        self, x_MK: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[Representation | None, Representation | None]:
        kept = Representation(x_MK if self.dtype is None else x_MK.to(self.dtype))
        return kept if self.rowwise_usage else None, kept if self.columnwise_usage else None

    @override
    def decode(
        self, data: Representation, usage: Usage, shape: tuple[int, int], dtype: torch.dtype
    ) -> torch.Tensor:
        return data.data.to(dtype)

    @override
    def operand(self, data: Representation, usage: Usage, shape: tuple[int, int]) -> Operand:
        from qrole_kernels.operand import Operand

        return Operand("high_precision", data.data if usage is Usage.ROWWISE else data.data.t())
