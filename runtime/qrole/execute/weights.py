"""Quantized weights, made once and kept while the weight does not change."""

from __future__ import annotations

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
        columnwise: bool,
        generator: torch.Generator | None,
    ) -> tuple[QuantizedTensor, bool]:
        """The quantized weight, and whether anything was quantized for it just now.

        Args:
            view_NK: The weight as (out, in), any strides; its storage is kept alive by the entry.
            dtype: What the weight is cast to before it is quantized.
            quantizer: Used as it is; its usage flags are set here.
            columnwise: The column-wise representation is needed too.
            generator: Random bits for stochastic rounding.
        """
        storage = view_NK.untyped_storage()
        place = (storage._cdata, view_NK.storage_offset(), view_NK.shape, view_NK.stride())
        key = (place, dtype, quantizer)
        version = view_NK._version
        found = self._entries.get(key)
        if found is None or found[0] != version:
            made = self.quantize(view_NK, dtype, quantizer, columnwise, generator)
            self._entries[key] = (version, made, storage)
            return made, True
        made = found[1]
        if columnwise and made.columnwise is None:
            quantizer.set_usage(rowwise=False, columnwise=True)
            weight = view_NK.detach().to(dtype)
            made.columnwise = quantizer.quantize(weight, generator=generator).columnwise
            return made, True
        return made, False

    @staticmethod
    def quantize(
        view_NK: torch.Tensor,
        dtype: torch.dtype,
        quantizer: Quantizer,
        columnwise: bool,
        generator: torch.Generator | None,
    ) -> QuantizedTensor:
        """A freshly quantized weight that is not kept."""
        quantizer.set_usage(rowwise=True, columnwise=columnwise)
        return quantizer.quantize(view_NK.detach().to(dtype), generator=generator)
