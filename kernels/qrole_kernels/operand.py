"""What enters a product: a matrix in some number format."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qrole_kernels.errors import ArgumentError
from qrole_kernels.formats import SCALED_FORMATS, fp8_format
from qrole_kernels.reference.arguments import check_choice, check_shape
from qrole_kernels.reference.blocks import ceil_div
from qrole_kernels.reference.nvfp4 import check_amax

HIGH_PRECISION = "high_precision"
FORMATS = (HIGH_PRECISION, *SCALED_FORMATS)
PACKED = ("nvfp4", "mxfp4")
FAMILIES = {
    "fp8_rows": "fp8_tensor",
    "fp8_block_1d": "fp8_block",
    "fp8_block_2d": "fp8_block",
}
"""Formats that meet each other; any other format meets its own kind only."""


@dataclass(frozen=True)
class Operand:
    """One operand of a product: a matrix (R, K) in a number format, K being summed over.

    Column-wise data enters transposed, so that K comes last; views are fine.

    Invariants: shapes and dtypes of data, scale and amax are those that the format asks for.

    Attributes:
        format: "high_precision" or a name of `qrole_kernels.formats.SCALED_FORMATS`.
        data: The tensor itself (R, K) in high precision; codes (R, K), uint8; two to a byte
            (R, ceil(K/2)) for NVFP4 and MXFP4.
        scale: Decode scales. fp32: one for "fp8_tensor", (R, 1) for "fp8_rows", (R, ceil(K/128))
            for "fp8_block_1d", (ceil(R/128), ceil(K/128)) for "fp8_block_2d". Bytes:
            (R, ceil(K/32)) for "mxfp8" and "mxfp4", (R, ceil(K/16)) for "nvfp4".
        amax: fp32 scalar or (R,), "nvfp4" only.
        element: "e4m3" or "e5m2", for the FP8 formats.
        e4m3_max: 448 or 256, for "nvfp4".
        columns: K of packed data where it is odd; None where it is twice the bytes of a row.
    """

    format: str
    data: Tensor
    scale: Tensor | None = None
    amax: Tensor | None = None
    element: str = "e4m3"
    e4m3_max: int = 448
    columns: int | None = None

    def __post_init__(self) -> None:
        """Check the invariants."""
        check_choice("format", self.format, FORMATS)
        if self.data.dim() != 2:
            raise ArgumentError(
                f"data of shape {tuple(self.data.shape)}",
                "a matrix (R, K)",
                "Flatten the leading dimensions first.",
            )
        if self.format == HIGH_PRECISION:
            return
        stored = SCALED_FORMATS[self.format]
        self._check("data", self.data, torch.uint8)
        scale_dtype = torch.float32 if stored.scale_format == "f32" else torch.uint8
        scale = self._check("scale", self.scale, scale_dtype)
        check_shape("scale", scale, self._scale_shape(scale))
        if stored.scale_format == "f32" or self.format == "mxfp8":
            fp8_format(self.element)
        if self.format == "nvfp4":
            check_choice("e4m3_max", self.e4m3_max, (448, 256))
            check_amax(self._check("amax", self.amax, torch.float32), self.shape[0], 1)

    def _check(self, name: str, value: Tensor | None, dtype: torch.dtype) -> Tensor:
        if value is None or value.dtype != dtype:
            given = "none" if value is None else f"one of {value.dtype}"
            raise ArgumentError(
                f"{given} as {name} of an operand {self.format}",
                f"a tensor of {dtype}",
                f"Pass the {name} that the quantization returned, as raw bytes or fp32.",
            )
        return value

    def _scale_shape(self, scale: Tensor) -> tuple[int, ...]:
        block_rows, block_cols = SCALED_FORMATS[self.format].block
        rows, columns = self.shape
        if block_rows is None:
            return () if scale.dim() == 0 else (1,) * scale.dim()
        return ceil_div(rows, block_rows), ceil_div(columns, block_cols) if block_cols else 1

    @property
    def shape(self) -> tuple[int, int]:
        """(R, K)."""
        rows, columns = self.data.shape
        if self.format not in PACKED:
            return rows, columns
        return rows, 2 * columns if self.columns is None else self.columns

    def rows(self, start: int, stop: int) -> "Operand":
        """Some of the rows, as a view; `start` is a multiple of 128.

        The scale of a tensor stays, those of rows and blocks are cut.
        """
        scale, amax = self.scale, self.amax
        block_rows = SCALED_FORMATS[self.format].block[0] if self.format != HIGH_PRECISION else None
        if scale is not None and block_rows is not None:
            scale = scale[start // block_rows : ceil_div(stop, block_rows)]
        if amax is not None and amax.dim():
            amax = amax[start:stop]
        return replace(self, data=self.data[start:stop], scale=scale, amax=amax)

    def pack(self) -> tuple[list[Tensor], str]:
        """The tensors, and the rest as text: how operands pass the border of an op."""
        tensors = [t for t in (self.data, self.scale, self.amax) if t is not None]
        columns = "" if self.columns is None else self.columns
        return tensors, f"{self.format},{self.element},{self.e4m3_max},{columns}"

    @staticmethod
    def unpack(tensors: list[Tensor], options: str) -> "Operand":
        """Undo `pack`."""
        format_name, element, e4m3_max, columns = options.split(",")
        data, scale, amax = (*tensors, None, None)[:3]
        assert data is not None
        width = int(columns) if columns else None
        return Operand(format_name, data, scale, amax, element, int(e4m3_max), width)

    @property
    def family(self) -> str:
        """What the operand can be multiplied with."""
        return FAMILIES.get(self.format, self.format)
