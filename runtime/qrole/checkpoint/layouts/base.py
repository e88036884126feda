"""What a layout is: names, dtypes and shapes of stored parts, and the documents beside them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from qrole.checkpoint.layers import Layer, Selection
from qrole.checkpoint.schemes import Scheme
from qrole.checkpoint.source import Source

__all__ = ["Content", "Layout", "Part"]


class Content(StrEnum):
    """What a stored part holds.

    `data` are the codes and `scale` the block scales; the others are one fp32 number. A multiplier
    is what codes are multiplied with, a divisor what they are divided by.
    """

    DATA = "data"
    SCALE = "scale"
    WEIGHT_MULTIPLIER = "weight multiplier"
    WEIGHT_DIVISOR = "weight divisor"
    INPUT_MULTIPLIER = "input multiplier"
    INPUT_DIVISOR = "input divisor"
    ROWWISE_DATA = "rowwise_data"
    ROWWISE_SCALE_INV = "rowwise_scale_inv"
    COLUMNWISE_DATA = "columnwise_data"
    COLUMNWISE_SCALE_INV = "columnwise_scale_inv"
    AMAX_ROWWISE = "amax_rowwise"
    AMAX_COLUMNWISE = "amax_columnwise"


@dataclass(frozen=True)
class Part:
    """One stored tensor of a layer.

    Attributes:
        name: Full tensor name.
        dtype: safetensors dtype.
        shape: Dimensions.
        content: What it holds.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: Content


class Layout(ABC):
    """One way of writing a checkpoint.

    Attributes:
        name: What `--layout` takes.
    """

    name: ClassVar[str]

    #: Schemes that the layout can hold.
    schemes: ClassVar[frozenset[str]]

    #: The layout holds one scheme per checkpoint.
    single_scheme: ClassVar[bool] = False

    #: FP8 blocks need out_features in whole blocks.
    block_rows: ClassVar[bool] = False

    #: Weights are quantized by the plan's own quantizers, in torch, instead of into a scheme.
    own_quantizers: ClassVar[bool] = False

    @abstractmethod
    def parts(self, layer: Layer) -> tuple[Part, ...]:
        """The stored tensors of a layer, codes first."""

    @abstractmethod
    def codes_name(self, module: str, scheme: Scheme) -> str:
        """Name of the tensor that holds a module's codes."""

    @abstractmethod
    def documents(self, selection: Selection, source: Source) -> dict[str, str]:
        """Texts to write beside the weights, by file name; config.json among them."""

    def metadata(self, layers: Iterable[Layer]) -> dict[str, str]:
        """What the metadata of a file say of the layers that it holds."""
        return {}


def codes(name: str, dtype: str, layer: Layer) -> Part:
    """The codes of a layer under `name`."""
    shape = layer.scheme.stored.data_shape(layer.rows, layer.columns)
    return Part(name, dtype, shape, Content.DATA)


def block_scales(name: str, layer: Layer, shape: tuple[int, ...] | None = None) -> Part:
    """The block scales of a layer under `name`, in another shape of equal size where given."""
    stored = layer.scheme.stored
    compact = stored.scale_shape(layer.rows, layer.columns)
    return Part(name, stored.scale_dtype, compact if shape is None else shape, Content.SCALE)
