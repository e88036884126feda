"""What torch functions do with their arguments, and where those of matrix products are."""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["by_position", "writes"]

_WRITES = frozenset(
    {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__"}
    | {"__imod__", "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"}
)

# In the order in which they come; no function has two of one place.
_NAMES = ("input", "mat_a", "mat1", "batch1", "mat_b", "mat2", "batch2", "other", "tensor2")


def by_position(args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """The operands of a product, and its other arguments."""
    if not kwargs:
        return args, kwargs
    rest = dict(kwargs)
    return [*args, *(rest.pop(name) for name in _NAMES if name in kwargs)], rest


@functools.cache
def writes(function: Any) -> bool:
    """Whether a torch function writes to its first argument."""
    name = getattr(function, "__name__", "")
    return name in _WRITES or (name.endswith("_") and not name.endswith("__"))
