"""Stored codes back to values, in plain torch and apart from the kernels that wrote them.

Beside each value stands what rounding alone may have done to it, so that an error can be told from
a defect element by element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qrole.checkpoint.headers import TensorInfo
from qrole.checkpoint.layouts import Content
from qrole.checkpoint.schemes import Encoding
from qrole.checkpoint.verification.reading import Reader

if TYPE_CHECKING:
    import torch

__all__ = ["StoredLayer", "decode"]

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class StoredLayer:
    """The stored parts of one layer.

    Attributes:
        module: The layer.
        encoding: How its codes are to be read.
        rows: out_features.
        columns: in_features.
        parts: Places by content; codes are there, and every scale that the encoding has.
    """

    module: str
    encoding: Encoding
    rows: int
    columns: int
    parts: Mapping[Content, TensorInfo]


def decode(
    layer: StoredLayer, reader: Reader, first: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of a layer's weight.

    Args:
        layer: The layer.
        reader: Reads its files.
        first: First row; a multiple of the rows that share a scale.
        count: Number of rows.

    Returns:
        Values, fp32 (count, columns), and what a code of 1 stands for at each element, fp32, of
        the same shape.
    """
    codes = _codes(layer, reader, first, count)
    unit = _unit(layer, reader, first, count).expand_as(codes)
    return codes * unit, unit


def _codes(layer: StoredLayer, reader: Reader, first: int, count: int) -> torch.Tensor:
    import torch

    raw = reader.raw(layer.parts[Content.DATA], first, count)
    if layer.encoding.element_bits == 8:
        return raw.view(torch.float8_e4m3fn).float().reshape(count, layer.columns)
    table = torch.tensor([*_E2M1, *(-value for value in _E2M1)])
    low, high = table[(raw & 15).int()], table[(raw >> 4).int()]
    return torch.stack((low, high), -1).reshape(count, layer.columns)


def _unit(layer: StoredLayer, reader: Reader, first: int, count: int) -> torch.Tensor:
    import torch

    whole = torch.ones(())
    if Content.WEIGHT_MULTIPLIER in layer.parts:
        whole = reader.rows(layer.parts[Content.WEIGHT_MULTIPLIER]).float().reshape(())
    elif Content.WEIGHT_DIVISOR in layer.parts:
        whole = 1.0 / reader.rows(layer.parts[Content.WEIGHT_DIVISOR]).float().reshape(())
    if Content.SCALE not in layer.parts:
        return whole.reshape(1, 1)
    scales = _block_scales(layer, reader, first, count) * whole
    height, width = layer.encoding.scale_rows, layer.encoding.scale_columns
    if width:
        scales = scales.repeat_interleave(width, 1)[:, : layer.columns]
    return scales.repeat_interleave(height, 0)[:count]


def _block_scales(layer: StoredLayer, reader: Reader, first: int, count: int) -> torch.Tensor:
    import torch

    info, encoding = layer.parts[Content.SCALE], layer.encoding
    across = encoding.scale_shape(layer.rows, layer.columns)[1]
    top, bottom = first // encoding.scale_rows, -(-(first + count) // encoding.scale_rows)
    row_bytes = info.nbytes // encoding.scale_shape(layer.rows, layer.columns)[0]
    flat = reader.raw(info)[top * row_bytes : bottom * row_bytes]
    if encoding.scale_dtype == "F8_E4M3":
        values = flat.view(torch.float8_e4m3fn).float()
    elif encoding.scale_dtype == "U8":
        values = torch.tensor([*(2.0 ** (i - 127) for i in range(255)), torch.nan])[flat.int()]
    else:
        names = {"BF16": torch.bfloat16, "F16": torch.float16}
        values = flat.view(names.get(info.dtype, torch.float32)).float()
    return values.reshape(bottom - top, across)
