"""Factories of older TransformerEngine releases, which were called with a string.

There a role was one of five strings and None meant: no quantization. Such a factory is recognized
by its source, because asking it would be a call too many: factories may keep state.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from qrole.quantizers.identity import IdentityQuantizer
from qrole.roles import QuantizerRole

__all__ = ["STRING_ROLES", "StringRoleWarning", "adapt_string_roles", "takes_string_roles"]

STRING_ROLES = tuple(
    f"linear_{tensor}" for tensor in ("input", "weight", "output", "grad_output", "grad_input")
)
_ROLE_ATTRIBUTES = {"module_type", "tensor_type"}

Answer = Callable[[QuantizerRole | None], Any]


class StringRoleWarning(UserWarning):
    """A factory of an older TransformerEngine release is adapted."""


def takes_string_roles(factory: Callable[..., Any]) -> bool:
    """Whether a factory's source compares with string roles and reads no attribute of a role."""
    code = _code(factory)
    return code is not None and _compares_strings(code)


def _code(factory: Callable[..., Any]) -> CodeType | None:
    """What runs when the factory is called; None for what is not written in Python."""
    inner: Any = factory
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    if not (inspect.isfunction(inner) or inspect.ismethod(inner)):
        inner = inner.__call__
    code: CodeType | None = getattr(inner, "__code__", None)
    return code


@functools.lru_cache(maxsize=256)
def _compares_strings(code: CodeType) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return False
    nodes = list(ast.walk(tree))
    strings = any(isinstance(n, ast.Constant) and n.value in STRING_ROLES for n in nodes)
    attributes = any(isinstance(n, ast.Attribute) and n.attr in _ROLE_ATTRIBUTES for n in nodes)
    return strings and not attributes


def adapt_string_roles(factory: Callable[..., Any]) -> Answer:
    """A factory that takes roles, from one that may take strings; others are returned as they are.

    Roles of linear layers, grouped ones included, become the string of their tensor type; None,
    which only boundary slots have, becomes `linear_output`. Other roles did not exist then and stay
    in high precision without a call.
    """
    code = _code(factory)
    if code is None or not _compares_strings(code):
        return factory
    warnings.warn(
        f"{code.co_name} of {Path(code.co_filename).name} takes the string roles of "
        f"TransformerEngine 2.9 to 2.15: it is called with {', '.join(STRING_ROLES[:2])}, ..., and "
        "None from it means high precision",
        StringRoleWarning,
        stacklevel=2,
    )

    def adapted(role: QuantizerRole | None) -> Any:
        text = _as_string(role)
        answer = factory(text) if text else None
        return IdentityQuantizer() if answer is None else answer

    return functools.update_wrapper(adapted, factory)


def _as_string(role: QuantizerRole | None) -> str:
    """The string role; `""` where there was none."""
    if role is None:
        return "linear_output"
    text = f"linear_{role.tensor_type}"
    linear = role.module_type in ("linear", "grouped_linear")
    return text if linear and text in STRING_ROLES else ""
