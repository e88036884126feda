"""Stored parts of a layer as a quantized tensor: its codes, and a quantizer that reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from typing_extensions import override

from qrole.checkpoint.layouts import Content
from qrole.checkpoint.manifest import MANIFEST
from qrole.checkpoint.numbers import number
from qrole.checkpoint.scalars import E2M1_MAX, f32, reciprocal
from qrole.checkpoint.schemes import WeightFormat
from qrole.checkpoint.verification.decoding import StoredLayer
from qrole.checkpoint.verification.reading import Reader
from qrole.dtypes import DType
from qrole.errors import CheckpointError
from qrole.quantizers import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    MXFP4Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    OperandFormat,
    QuantizedTensor,
    Quantizer,
    Representation,
)
from qrole.roles import Usage

if TYPE_CHECKING:
    import torch

    from qrole_kernels.operand import Operand

__all__ = ["Float8ChannelQuantizer", "quantized_tensor", "quantizer_of"]

_E4M3 = DType.kFloat8E4M3


class Float8ChannelQuantizer(Quantizer):
    """FP8 E4M3 with one scale per row, which engines have for weights (one per output channel).

    Column-wise data is the quantization of the transpose.

    Args:
        rowwise: Make row-wise data.
        columnwise: Make column-wise data (K, M).
    """

    def __init__(self, *, rowwise: bool = True, columnwise: bool = True) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)

    @property
    @override
    def rowwise_format(self) -> OperandFormat:
        return OperandFormat("fp8_tensor", "e4m3", scale="fp32", row_scaled=True)

    @property
    @override
    def columnwise_format(self) -> OperandFormat:
        return self.rowwise_format

    @property
    @override
    def label(self) -> str:
        return "FP8 channel E4M3"

    @override
    def encode(
        self, x_MK: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[Representation | None, Representation | None]:
        from qrole_kernels import ops

        def made(x: torch.Tensor) -> Representation:
            return Representation(*ops.quantize_fp8_rows(x, "e4m3"))

        return (
            made(x_MK) if self.rowwise_usage else None,
            made(x_MK.t()) if self.columnwise_usage else None,
        )

    @override
    def decode(
        self, data: Representation, usage: Usage, shape: tuple[int, int], dtype: torch.dtype
    ) -> torch.Tensor:
        from qrole_kernels import ops

        assert data.scale_inv is not None, "rows have scales"
        matrix = ops.dequantize_fp8_rows(data.data, data.scale_inv, "e4m3", dtype)
        return matrix if usage is Usage.ROWWISE else matrix.t()

    @override
    def operand(self, data: Representation, usage: Usage, shape: tuple[int, int]) -> Operand:
        from qrole_kernels.operand import Operand

        return Operand("fp8_rows", data.data, data.scale_inv, element="e4m3")


def quantizer_of(fmt: WeightFormat) -> Quantizer:
    """The quantizer whose row-wise data of a weight is what an encoder told `fmt` stores."""
    return _QUANTIZERS[fmt.encoding](fmt)


_QUANTIZERS: dict[str, Callable[[WeightFormat], Quantizer]] = {
    "fp8_tensor": lambda fmt: Float8CurrentScalingQuantizer(
        _E4M3, "cpu", force_pow_2_scales=fmt.power_of_two, amax_epsilon=fmt.epsilon
    ),
    "fp8_channel": lambda fmt: Float8ChannelQuantizer(),
    "fp8_block": lambda fmt: Float8BlockQuantizer(
        _E4M3,
        rowwise=True,
        columnwise=True,
        amax_epsilon=fmt.epsilon,
        force_pow_2_scales=fmt.power_of_two,
    ),
    "mxfp8": lambda fmt: MXFP8Quantizer(_E4M3, with_2d_quantization=fmt.block_rows > 1),
    "mxfp4": lambda fmt: MXFP4Quantizer(fmt.rule),
    "nvfp4": lambda fmt: NVFP4Quantizer(
        with_2d_quantization=fmt.block_rows > 1,
        nvfp4_use_4over6=bool(fmt.four_over_six),
        nvfp4_e4m3_max=fmt.e4m3_max,
        nvfp4_4over6_err_mode=(fmt.four_over_six or "mae").upper(),
    ),
}


def quantized_tensor(
    layer: StoredLayer,
    fmt: WeightFormat,
    amax: float | None,
    reader: Reader,
    dtype: torch.dtype,
) -> QuantizedTensor:
    """A layer's weight (rows, columns), its data mapped from the file.

    Args:
        layer: The stored parts.
        fmt: How they were encoded.
        amax: Amax that a scale of the whole tensor was made from; where it is not known (None),
            that of NVFP4 is the scale's, exact but for the rounding of two products.
        reader: Reads the files.
        dtype: What `dequantize` gives by default.

    Raises:
        CheckpointError: The stored scale is not the one of `amax`.
    """
    import torch

    data_shape = layer.encoding.data_shape(layer.rows, layer.columns)
    data = reader.raw(layer.parts[Content.DATA]).reshape(data_shape)
    if amax is not None:
        _check_amax(layer, fmt, amax, reader)
    elif fmt.encoding == "nvfp4":
        amax = _amax_of_scale(layer, fmt, reader)
    held = None if amax is None else torch.tensor(amax, dtype=torch.float32)
    made = Representation(data, _scales(layer, reader), held)
    shape = torch.Size((layer.rows, layer.columns))
    return QuantizedTensor(shape, dtype, quantizer_of(fmt), made)


def _scales(layer: StoredLayer, reader: Reader) -> torch.Tensor:
    """Compact scales: fp32, or the bytes of E8M0 and E4M3; one number for a whole FP8 tensor."""
    import torch

    info = layer.parts.get(Content.SCALE)
    if info is None:
        return reader.rows(layer.parts[Content.WEIGHT_MULTIPLIER]).float().reshape(())
    scales = reader.rows(info)
    if scales.dtype is not torch.uint8:
        scales = scales.float()
    return scales.reshape(layer.encoding.scale_shape(layer.rows, layer.columns))


def _check_amax(layer: StoredLayer, fmt: WeightFormat, amax: float, reader: Reader) -> None:
    for content in (Content.WEIGHT_DIVISOR, Content.WEIGHT_MULTIPLIER):
        info = layer.parts.get(content)
        if info is None:
            continue
        stored, wanted = reader.number(info), number(content, fmt, amax, 0.0)
        if stored != wanted:
            raise CheckpointError(
                f"{info.name} is {stored:g}, and {MANIFEST} tells of an amax of {amax:g}",
                expected=f"{wanted:g}, the scale of that amax",
                hint="run `qrole verify` on the directory, or write it again",
            )


def _amax_of_scale(layer: StoredLayer, fmt: WeightFormat, reader: Reader) -> float:
    if Content.WEIGHT_DIVISOR in layer.parts:
        multiplier = reciprocal(reader.number(layer.parts[Content.WEIGHT_DIVISOR]))
    else:
        multiplier = reader.number(layer.parts[Content.WEIGHT_MULTIPLIER])
    return f32(multiplier * E2M1_MAX * fmt.e4m3_max)
