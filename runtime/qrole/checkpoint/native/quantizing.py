"""A weight through its own quantizer: the tensors that are stored of it, and their digest."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from qrole.checkpoint.encode import Workspace
from qrole.checkpoint.layers import Layer
from qrole.checkpoint.layouts.base import Content
from qrole.checkpoint.memory import UnusableSourceError
from qrole.checkpoint.native.descriptions import for_one_weight
from qrole.checkpoint.native.weights import NativeWeight
from qrole.checkpoint.source import Source

if TYPE_CHECKING:
    import torch

    from qrole.quantizers import QuantizedTensor

__all__ = ["digest", "quantized", "raw_bytes", "tensors_of", "with_weight"]

T = TypeVar("T")

_FIELDS = {
    Content.ROWWISE_DATA: "rowwise_data",
    Content.ROWWISE_SCALE_INV: "rowwise_scale_inv",
    Content.COLUMNWISE_DATA: "columnwise_data",
    Content.COLUMNWISE_SCALE_INV: "columnwise_scale_inv",
    Content.AMAX_ROWWISE: "amax_rowwise",
    Content.AMAX_COLUMNWISE: "amax_columnwise",
}


def with_weight(
    source: Source, layer: Layer, work: Workspace, use: Callable[[torch.Tensor], T]
) -> T:
    """What `use` makes of a layer's weight (rows, columns), which is valid in the call only.

    Raises:
        UnusableSourceError: The weight is not finite.
    """
    import torch

    tensor = source.tensors[layer.tensor]
    room = work.buffer("source", layer.rows * layer.columns * 4)
    names = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    with source.rows(tensor, layer.first_row, layer.rows, layer.columns, room) as (address, name):
        dtype = names[name]
        held = (ctypes.c_char * (layer.rows * layer.columns * dtype.itemsize)).from_address(address)
        x_MK = torch.frombuffer(held, dtype=dtype).reshape(layer.rows, layer.columns)
        if not bool(torch.isfinite(x_MK).all()):
            raise UnusableSourceError(
                f"the weight {layer.tensor} holds a NaN or an infinity",
                expected="finite weights",
                hint="fetch the file again, or keep this layer in high precision",
            )
        return use(x_MK)


def quantized(weight: NativeWeight, x_MK: torch.Tensor) -> QuantizedTensor:
    """Both representations of a matrix, the same in every run."""
    import torch

    generator = None
    if weight.seed is not None:
        generator = torch.Generator().manual_seed(weight.seed)
    return for_one_weight(weight.quantizer).quantize(x_MK, generator=generator)


def tensors_of(made: QuantizedTensor, contents: Iterable[Content]) -> dict[Content, torch.Tensor]:
    """The named parts of a quantized tensor, which are all that it has."""
    wanted = list(contents)
    found = {content: getattr(made, name) for content, name in _FIELDS.items()}
    if Content.COLUMNWISE_DATA not in wanted and found[Content.COLUMNWISE_DATA] is not None:
        assert found[Content.COLUMNWISE_DATA] is found[Content.ROWWISE_DATA], "one buffer for both"
        del found[Content.COLUMNWISE_DATA]
    parts = {content: value for content, value in found.items() if value is not None}
    assert parts.keys() == set(wanted), f"{sorted(parts)} of {made.quantizer!r}"
    return {content: parts[content] for content in wanted}


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in the order of its elements, uint8."""
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def digest(parts: Iterable[tuple[str, torch.Tensor]]) -> str:
    """SHA-256 over the names and bytes of a weight's parts, by name."""
    found = hashlib.sha256()
    for name, raw in sorted(parts):
        found.update(f"{name}:{raw.numel()}:".encode())
        found.update(raw.numpy().data)
    return found.hexdigest()
