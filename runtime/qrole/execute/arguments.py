"""Arguments of matrix products by position, however they were given."""

from __future__ import annotations

from typing import Any

__all__ = ["by_position"]

# In the order in which they come; no function has two of one place.
_NAMES = ("input", "mat_a", "mat1", "batch1", "mat_b", "mat2", "batch2", "other", "tensor2")


def by_position(args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """The operands of a product, and its other arguments."""
    if not kwargs:
        return args, kwargs
    rest = dict(kwargs)
    return [*args, *(rest.pop(name) for name in _NAMES if name in kwargs)], rest
