"""Activations as operations."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from qrole.dtypes import DType
from qrole.modules.activation import Activation, activation
from qrole.modules.keywords import ActivationKeywords, check_keywords
from qrole.modules.ops.operation import PlainOperation
from qrole.quantizers import Float8CurrentScalingQuantizer, QuantizedTensor

__all__ = [
    "GEGLU",
    "GELU",
    "GLU",
    "QGEGLU",
    "QGELU",
    "ClampedSwiGLU",
    "ReGLU",
    "ReLU",
    "SReGLU",
    "SReLU",
    "ScaledClampedQGeGLU",
    "ScaledSReLU",
    "ScaledSiTUGLU",
    "ScaledSwiGLU",
    "SiLU",
    "SiTUGLU",
    "SwiGLU",
]


class _CachedQuantized(torch.autograd.Function):
    """An activation whose gradient is taken at the FP8 form of its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Activation) -> Tensor:
        quantizer = Float8CurrentScalingQuantizer(DType.kFloat8E4M3, x.device, columnwise=False)
        ctx.saved, ctx.function = quantizer(x), function
        return function(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        saved: QuantizedTensor = ctx.saved
        with torch.enable_grad():
            x = saved.dequantize().requires_grad_()
            (grad,) = torch.autograd.grad(ctx.function(x), x, grad_output)
        return grad, None


def _deinterleaved(x: Tensor, size: int | None) -> Tensor:
    """Blocks of `size` gates and `size` linear units in turn, as all gates before all units."""
    if size is None:
        return x
    return torch.unflatten(x, -1, (-1, 2, size)).transpose(-3, -2).flatten(-3)


class _Activation(PlainOperation):
    """An activation of the last dimension.

    Args:
        cache_quantized_input: Take the gradient at the FP8 form of the input, which is what
            TransformerEngine keeps to save memory.
    """

    te_name: ClassVar[str]

    def __init__(self, *, cache_quantized_input: bool = False) -> None:
        super().__init__()
        self.cache_quantized_input = cache_quantized_input
        self.function = activation(self.te_name)
        self.glu_interleave_size: int | None = None

    @override
    def compute(self, x: Tensor, *extra: Tensor) -> Tensor:
        x = _deinterleaved(x, self.glu_interleave_size)
        if not self.cache_quantized_input:
            return self.function(x)
        result: Tensor = _CachedQuantized.apply(x, self.function)  # type: ignore[no-untyped-call]
        return result


class GELU(_Activation):
    """GELU in its tanh approximation."""

    te_name = "gelu"


class GEGLU(_Activation):
    """GELU of the first half times the second."""

    te_name = "geglu"


class GLU(_Activation):
    """Sigmoid of the first half times the second."""

    te_name = "glu"


class QGELU(_Activation):
    """`x * sigmoid(1.702 x)`."""

    te_name = "qgelu"


class QGEGLU(_Activation):
    """QGELU of the first half times the second."""

    te_name = "qgeglu"


class ReLU(_Activation):
    """`max(x, 0)`."""

    te_name = "relu"


class ReGLU(_Activation):
    """ReLU of the first half times the second."""

    te_name = "reglu"


class SReLU(_Activation):
    """`max(x, 0)` squared."""

    te_name = "srelu"


class SReGLU(_Activation):
    """SReLU of the first half times the second."""

    te_name = "sreglu"


class SiLU(_Activation):
    """`x * sigmoid(x)`."""

    te_name = "silu"


class SwiGLU(_Activation):
    """SiLU of the first half times the second.

    Args:
        cache_quantized_input: Take the gradient at the FP8 form of the input.
        glu_interleave_size: Gates and linear units come in turn, in blocks of this size; None for
            all gates before all units.
    """

    te_name = "swiglu"

    def __init__(
        self, *, cache_quantized_input: bool = False, glu_interleave_size: int | None = None
    ) -> None:
        super().__init__(cache_quantized_input=cache_quantized_input)
        self.glu_interleave_size = glu_interleave_size


class SiTUGLU(SwiGLU):
    """`beta1 tanh(a / beta1) sigmoid(a) * beta2 tanh(b / beta2)`.

    Args:
        beta1: Soft cap of the gate, > 0.
        beta2: Soft cap of the linear unit, > 0.
        cache_quantized_input: As in `SwiGLU`.
        glu_interleave_size: As in `SwiGLU`.
    """

    def __init__(
        self,
        *,
        beta1: float = 4.0,
        beta2: float = 25.0,
        cache_quantized_input: bool = False,
        glu_interleave_size: int | None = None,
    ) -> None:
        super().__init__(
            cache_quantized_input=cache_quantized_input, glu_interleave_size=glu_interleave_size
        )
        self.function = activation("situglu", {"beta1": beta1, "beta2": beta2})


class ClampedSwiGLU(SwiGLU):
    """GPT-OSS's: both halves clamped, `a * sigmoid(alpha a) * (b + glu_linear_offset)`.

    Args:
        limit: Of the clamp: the gate from above, the linear unit on both sides.
        alpha: Factor in the sigmoid.
        glu_linear_offset: Added to the linear unit.
        cache_quantized_input: As in `SwiGLU`.
        glu_interleave_size: As in `SwiGLU`.
    """

    def __init__(
        self,
        *,
        limit: float = 7.0,
        alpha: float = 1.702,
        glu_linear_offset: float = 1.0,
        cache_quantized_input: bool = False,
        glu_interleave_size: int | None = None,
    ) -> None:
        super().__init__(
            cache_quantized_input=cache_quantized_input, glu_interleave_size=glu_interleave_size
        )
        parameters = {"limit": limit, "alpha": alpha, "glu_linear_offset": glu_linear_offset}
        self.function = activation("clamped_swiglu", parameters)


class _Scaled(PlainOperation):
    """An activation whose rows are multiplied by an extra input, one factor per row."""

    num_extra_inputs = 1

    def __init__(
        self,
        function: Activation,
        glu_interleave_size: int | None,
        keywords: ActivationKeywords,
    ) -> None:
        check_keywords(type(self).__name__, ActivationKeywords, keywords)
        super().__init__()
        self.function = function
        self.glu_interleave_size = glu_interleave_size

    @override
    def compute(self, x: Tensor, *extra: Tensor) -> Tensor:
        (scales,) = extra
        activated = self.function(_deinterleaved(x, self.glu_interleave_size).float())
        return (activated * scales.float().unsqueeze(-1)).to(x.dtype)


class ScaledSReLU(_Scaled):
    """SReLU, rows scaled."""

    def __init__(self, **keywords: Unpack[ActivationKeywords]) -> None:
        super().__init__(activation("srelu"), None, keywords)


class ScaledSwiGLU(_Scaled):
    """SwiGLU, rows scaled; `glu_interleave_size` as in `SwiGLU`."""

    def __init__(
        self, glu_interleave_size: int | None = None, **keywords: Unpack[ActivationKeywords]
    ) -> None:
        super().__init__(activation("swiglu"), glu_interleave_size, keywords)


class ScaledSiTUGLU(_Scaled):
    """SiTUGLU, rows scaled; parameters as in `SiTUGLU`."""

    def __init__(
        self,
        glu_interleave_size: int | None = None,
        *,
        beta1: float = 4.0,
        beta2: float = 25.0,
        **keywords: Unpack[ActivationKeywords],
    ) -> None:
        function = activation("situglu", {"beta1": beta1, "beta2": beta2})
        super().__init__(function, glu_interleave_size, keywords)


class ScaledClampedQGeGLU(_Scaled):
    """ClampedSwiGLU, rows scaled; parameters as in `ClampedSwiGLU`."""

    def __init__(
        self,
        glu_interleave_size: int | None = None,
        *,
        limit: float = 7.0,
        alpha: float = 1.702,
        glu_linear_offset: float = 1.0,
        **keywords: Unpack[ActivationKeywords],
    ) -> None:
        parameters = {"limit": limit, "alpha": alpha, "glu_linear_offset": glu_linear_offset}
        super().__init__(activation("clamped_swiglu", parameters), glu_interleave_size, keywords)
