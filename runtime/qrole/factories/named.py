"""Quantizers by class name and options, as a rules file writes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from qrole.dtypes import DType
from qrole.errors import ConfigError, QroleError, UnknownNameError
from qrole.quantizers.base import Quantizer
from qrole.recipes import Format
from qrole.roles import DelayedScalingRequest, QuantizerRequest
from qrole.user_code import load_attribute

__all__ = ["named_quantizer", "quantizer_classes"]

_DTYPES = {"E4M3": DType.kFloat8E4M3, "E5M2": DType.kFloat8E5M2, "E2M1": DType.kFloat4E2M1}

#: What constructors require and a rules file may leave out.
_REQUIRED = {"fp8_dtype": "E4M3", "device": "cuda", "rowwise": True, "columnwise": True}


def quantizer_classes() -> dict[str, type[Quantizer] | type[QuantizerRequest]]:
    """The classes that can be named without their module, by name."""
    from qrole import quantizers

    found: dict[str, type[Quantizer] | type[QuantizerRequest]] = {
        name: cls
        for name in quantizers.__all__
        if isinstance(cls := getattr(quantizers, name), type) and issubclass(cls, Quantizer)
    }
    # The base class is no format; Float8Quantizer's scale lives in buffers that a request gets.
    del found["Quantizer"], found["Float8Quantizer"]
    return {**found, "DelayedScalingRequest": DelayedScalingRequest}


def named_quantizer(
    name: str, options: Mapping[str, Any]
) -> Callable[[], Quantizer | QuantizerRequest]:
    """A function that builds a new quantizer on every call.

    Args:
        name: A class of `qrole.quantizers`, `DelayedScalingRequest`, or `pkg.mod:Class`.
        options: Keywords of its constructor. Element types are written `E4M3`, `E5M2`, `E2M1` or
            as members of DType; a nested quantizer is `{quantizer = ..., options = {...}}`.

    Raises:
        UnknownNameError: No such class, or no such keyword.
        ConfigError: The constructor refuses the options.
    """
    cls: Any = load_attribute(name) if ":" in name else quantizer_classes().get(name)
    if cls is None:
        raise UnknownNameError(
            "quantizer", name, quantizer_classes(), hint="or name a class as pkg.mod:Class"
        )
    parameters = inspect.signature(cls).parameters
    unknown = next((key for key in options if key not in parameters), None)
    if unknown is not None:
        hint = "options are the keywords of its constructor"
        raise UnknownNameError(f"option of {name}", unknown, parameters, hint=hint)
    given = {key: value for key, value in _REQUIRED.items() if _required(parameters.get(key))}
    given.update(options)

    def build() -> Quantizer | QuantizerRequest:
        built: Quantizer | QuantizerRequest = cls(**{k: _value(k, v) for k, v in given.items()})
        return built

    _try(build, name)
    return build


def _required(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _try(build: Callable[[], object], name: str) -> None:
    try:
        built = build()
    except QroleError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{name} refuses its options: {type(error).__name__}: {error}",
            expected="keywords and values that its constructor takes",
            hint=f"see the constructor of {name}",
        ) from error
    if not isinstance(built, Quantizer | QuantizerRequest):
        raise ConfigError(
            f"{name} builds a {type(built).__name__}",
            expected="a quantizer or a quantizer request",
            hint="name a subclass of qrole.Quantizer",
        )


def _value(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return named_quantizer(str(value.get("quantizer", "")), value.get("options", {}))()
    if isinstance(value, str) and key == "fp8_format":
        return _member(Format.__members__, value)
    if isinstance(value, str) and key in ("fp8_dtype", "fp4_dtype"):
        return _member({**_DTYPES, **DType.__members__}, value)
    return value


def _member(members: Mapping[str, Any], name: str) -> Any:
    if name not in members:
        raise UnknownNameError("element type", name, members, hint="write it as E4M3 or E5M2")
    return members[name]
