"""Quantized weights, made once and kept while the weight does not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qrole.quantizers.base import Quantizer
from qrole.quantizers.tensor import QuantizedTensor

if TYPE_CHECKING:
    import torch

__all__ = ["WeightCache"]


class WeightCache:
    """Quantized weights by storage, view and quantizer; several runs may share one.

    An entry serves as long as the parameter's version counter stands still, which every in-place
    operation on it moves (optimizers included; writes through `.data` are not seen).
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[Any, ...], tuple[int, QuantizedTensor, Any]] = {}

    def get(
        self,
        view_NK: torch.Tensor,
        dtype: torch.dtype,
        quantizer: Quantizer,
        quantize: Callable[[], QuantizedTensor],
    ) -> QuantizedTensor:
        """The quantized weight, with the representations that are needed.

        Args:
            view_NK: The weight as (out, in), any strides; its storage is kept alive by the entry.
            dtype: What the weight is cast to before it is quantized.
            quantizer: Its options are part of the key; its usage flags say what is needed.
            quantize: Has the quantizer make what its usage flags say.
        """
        storage = view_NK.untyped_storage()
        place = (storage._cdata, view_NK.storage_offset(), view_NK.shape, view_NK.stride())
        key = (place, dtype, quantizer)
        version = 0 if view_NK.is_inference() else view_NK._version
        found = self._entries.get(key)
        if found is None or found[0] != version:
            made = quantize()
            self._entries[key] = (version, made, storage)
            return made
        made = found[1]
        if quantizer.columnwise_usage and made.columnwise is None:
            made.columnwise = quantize().columnwise
        return made
