"""Tensors that carry their quantized form from the module that made it to the one that reads it.

TransformerEngine hands an FP8 tensor from one module to the next (`fp8_output`, `fp8_grad`, FP8
multi-head attention) and the next does not quantize again. Here the tensor that autograd sees
holds the dequantized values, and its quantized form rides along as an attribute of that very
object; a view, a copy or an in-place change does not carry it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from qrole.quantizers.tensor import QuantizedTensor

__all__ = ["attach_quantized", "quantized_form"]

_ATTRIBUTE = "_qrole_quantized"


class _Carried(NamedTuple):
    quantized: QuantizedTensor
    version: int


def attach_quantized(tensor: Tensor, quantized: QuantizedTensor) -> Tensor:
    """Marks `tensor` as the dequantized values of `quantized` and returns it."""
    setattr(tensor, _ATTRIBUTE, _Carried(quantized, tensor._version))
    return tensor


def quantized_form(tensor: Tensor) -> QuantizedTensor | None:
    """The quantized form that `tensor` carries; None where it has none or was changed since."""
    carried: _Carried | None = getattr(tensor, _ATTRIBUTE, None)
    if carried is None or carried.version != tensor._version:
        return None
    return carried.quantized
