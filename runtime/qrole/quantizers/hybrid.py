"""Two quantizers for one tensor: one makes the row-wise data, the other the column-wise."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from typing_extensions import override

from qrole.errors import ConfigError, OperandError
from qrole.quantizers.base import OperandFormat, Quantizer
from qrole.quantizers.tensor import Representation
from qrole.roles import QuantizerRequest, Usage

if TYPE_CHECKING:
    import torch

    from qrole_kernels.operand import Operand

__all__ = ["HybridQuantizer"]

_SOURCES = ("original", "rowwise_dequantized")


class HybridQuantizer(Quantizer):
    """Joins the row-wise side of one quantizer with the column-wise side of another.

    The two are pinned to their side.

    Args:
        rowwise_quantizer: Makes the data of fprop, and of dgrad's gradient.
        columnwise_quantizer: Makes the data of wgrad, and of dgrad's weight; another object.
        columnwise_source: What the column-wise side quantizes: the `original` tensor, or the
            `rowwise_dequantized` one, so that the backward pass sees what the forward pass saw.

    Raises:
        OperandError: A side is no quantizer; a request cannot be nested.
        ConfigError: Both sides are one object, or the source is none of the two.
    """

    options: ClassVar[tuple[str, ...]] = (
        "rowwise_quantizer",
        "columnwise_quantizer",
        "columnwise_source",
    )

    def __init__(
        self,
        *,
        rowwise_quantizer: Quantizer,
        columnwise_quantizer: Quantizer,
        columnwise_source: str = "original",
    ) -> None:
        super().__init__(rowwise=True, columnwise=True)
        _check_side("rowwise_quantizer", rowwise_quantizer)
        _check_side("columnwise_quantizer", columnwise_quantizer)
        if rowwise_quantizer is columnwise_quantizer:
            raise ConfigError(
                "rowwise_quantizer and columnwise_quantizer are one and the same object",
                expected="two objects: each is pinned to its own direction",
                hint="build the second one anew, with the same arguments",
            )
        if columnwise_source not in _SOURCES:
            raise ConfigError(
                f"columnwise_source={columnwise_source!r}",
                expected=f"one of {', '.join(_SOURCES)}",
                hint="rowwise_dequantized suits inputs and weights, original suits gradients",
            )
        self.rowwise_quantizer = rowwise_quantizer
        self.columnwise_quantizer = columnwise_quantizer
        self.columnwise_source = columnwise_source
        rowwise_quantizer.set_usage(rowwise=True, columnwise=False)
        columnwise_quantizer.set_usage(rowwise=False, columnwise=True)

    @property
    @override
    def rowwise_format(self) -> OperandFormat:
        return self.rowwise_quantizer.rowwise_format

    @property
    @override
    def columnwise_format(self) -> OperandFormat:
        return self.columnwise_quantizer.columnwise_format

    @property
    @override
    def label(self) -> str:
        source = " (of row)" if self.columnwise_source == "rowwise_dequantized" else ""
        return f"{self.rowwise_quantizer.label} | {self.columnwise_quantizer.label}{source}"

    @override
    def copy(self) -> Self:
        copied = super().copy()
        copied.rowwise_quantizer = self.rowwise_quantizer.copy()
        copied.columnwise_quantizer = self.columnwise_quantizer.copy()
        return copied

    @override
    def check(self) -> None:
        self.rowwise_quantizer.check()
        self.columnwise_quantizer.check()

    @override
    def encode(
        self, x_MK: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[Representation | None, Representation | None]:
        dequantized = self.columnwise_usage and self.columnwise_source == "rowwise_dequantized"
        rowwise = None
        if self.rowwise_usage or dequantized:
            rowwise, _ = self.rowwise_quantizer.encode(x_MK, generator)
        columnwise = None
        if self.columnwise_usage:
            source = x_MK
            if dequantized:
                assert rowwise is not None, "pinned to the row-wise side"
                shape = (x_MK.shape[0], x_MK.shape[1])
                source = self.rowwise_quantizer.decode(rowwise, Usage.ROWWISE, shape, x_MK.dtype)
            _, columnwise = self.columnwise_quantizer.encode(source, generator)
        return rowwise if self.rowwise_usage else None, columnwise

    @override
    def decode(
        self, data: Representation, usage: Usage, shape: tuple[int, int], dtype: torch.dtype
    ) -> torch.Tensor:
        return self._side(usage).decode(data, usage, shape, dtype)

    @override
    def operand(self, data: Representation, usage: Usage, shape: tuple[int, int]) -> Operand:
        return self._side(usage).operand(data, usage, shape)

    def _side(self, usage: Usage) -> Quantizer:
        return self.rowwise_quantizer if usage is Usage.ROWWISE else self.columnwise_quantizer


def _check_side(name: str, side: object) -> None:
    if isinstance(side, QuantizerRequest):
        raise OperandError(
            f"{name} is a {type(side).__name__}",
            expected="a quantizer; a request cannot stand inside a HybridQuantizer",
            hint="use Float8CurrentScalingQuantizer there, or return the request itself",
        )
    if not isinstance(side, Quantizer):
        raise OperandError(
            f"{name} is {side!r} of type {type(side).__name__}",
            expected="an instance of qrole.Quantizer",
            hint="pass a quantizer object, not its class or its name",
        )
