"""The activations that TransformerEngine offers, computed in fp32 and rounded once.

Gated activations apply the gate to the first half of the last dimension, as TransformerEngine
does and `torch.nn.functional.glu` does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qrole.errors import ConfigError, UnknownNameError

__all__ = ["ACTIVATIONS", "Activation", "activation"]


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _qgelu(x: Tensor, alpha: float = 1.702) -> Tensor:
    return x * torch.sigmoid(alpha * x)


def _srelu(x: Tensor) -> Tensor:
    return torch.relu(x).square()


def _clamped_swiglu(
    a: Tensor, b: Tensor, limit: float, alpha: float, glu_linear_offset: float
) -> Tensor:
    return _qgelu(a.clamp(max=limit), alpha) * (b.clamp(-limit, limit) + glu_linear_offset)


def _situglu(a: Tensor, b: Tensor, beta1: float, beta2: float) -> Tensor:
    gate = beta1 * torch.tanh(a / beta1) * torch.sigmoid(a)
    return gate * (beta2 * torch.tanh(b / beta2))


_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": _gelu,
    "qgelu": _qgelu,
    "relu": torch.relu,
    "srelu": _srelu,
    "silu": F.silu,
}
_GATED: dict[str, Callable[[Tensor], Tensor]] = {
    "geglu": _gelu,
    "glu": torch.sigmoid,
    "qgeglu": _qgelu,
    "reglu": torch.relu,
    "sreglu": _srelu,
    "swiglu": F.silu,
}
_PARAMETRIC: dict[str, tuple[Callable[..., Tensor], dict[str, float]]] = {
    "clamped_swiglu": (
        _clamped_swiglu,
        {"limit": 7.0, "alpha": 1.702, "glu_linear_offset": 1.0},
    ),
    "situglu": (_situglu, {"beta1": 4.0, "beta2": 25.0}),
}

#: Names that `LayerNormMLP(activation=...)` takes.
ACTIVATIONS: tuple[str, ...] = (*_UNARY, *_GATED, "clamped_swiglu")


@dataclass(frozen=True)
class Activation:
    """One activation with its parameters.

    Attributes:
        name: Its name in TransformerEngine.
        gated: The last dimension is halved.
        function: Of the fp32 input, or of its two halves.
    """

    name: str
    gated: bool
    function: Callable[..., Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """Applies it to the last dimension; the result has `x`'s dtype."""
        wide = x.float()
        if not self.gated:
            return self.function(wide).to(x.dtype)
        a, b = wide.chunk(2, dim=-1)
        return self.function(a, b).to(x.dtype)


def activation(name: str, parameters: Mapping[str, float] | None = None) -> Activation:
    """The activation of a name.

    Args:
        name: One of `ACTIVATIONS`, or `situglu`.
        parameters: `limit`, `alpha`, `glu_linear_offset` of `clamped_swiglu`; `beta1`, `beta2` of
            `situglu`; no other activation has any.

    Raises:
        UnknownNameError: No such activation, or no such parameter.
        ConfigError: A parameter is not a positive finite number where it must be one.
    """
    given = dict(parameters or {})
    if name in _PARAMETRIC:
        function, values = _PARAMETRIC[name]
        _check_parameters(name, given, values)
        values = {**values, **given}
        return Activation(name, True, lambda a, b: function(a, b, **values))
    _check_parameters(name, given, {})
    if name in _UNARY:
        return Activation(name, False, _UNARY[name])
    if name in _GATED:
        gate = _GATED[name]
        return Activation(name, True, lambda a, b: gate(a) * b)
    raise UnknownNameError("activation", name, ACTIVATIONS)


def _check_parameters(name: str, given: Mapping[str, float], known: Mapping[str, float]) -> None:
    for key, value in given.items():
        if key not in known:
            raise UnknownNameError(f"parameter of activation {name}", key, known)
        if key.startswith("beta") and not (math.isfinite(value) and value > 0):
            raise ConfigError(
                f"{key}={value!r} of activation {name}",
                expected="a positive finite number",
                hint=f"the default is {known[key]}",
            )
