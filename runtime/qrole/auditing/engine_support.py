"""What an engine can't load of a plan, which will be written in one layout.

FP8 with one scale per tensor may be stored per channel instead, where an engine prefers that.
"""

from __future__ import annotations

from collections.abc import Collection

from qrole.auditing.options import Engine
from qrole.checkpoint.engines import Level, scheme_support

__all__ = ["missing_support"]

#: Scheme and whether experts have it.
Asked = tuple[str, bool]

#: Layouts by the quant_method that their configs name.
_LAYOUTS = {"compressed-tensors": "compressed-tensors", "modelopt": "modelopt", "fp8": "fp8-block"}

_STORED_AS = {"fp8_tensor": ("fp8_tensor", "fp8_channel")}


def missing_support(engine: Engine, asked: Collection[Asked], method: str = "") -> dict[Asked, str]:
    """What an engine can't load of the schemes that one checkpoint is to hold.

    Args:
        engine: The engine.
        asked: The schemes, and whether experts have them.
        method: `quant_method` of a checkpoint that is written already; `""` leaves the layout open.

    Returns:
        The reason, by scheme, for the layout in which fewest are missing; empty where all load.
    """
    layouts = [_LAYOUTS.get(method, method)] if method else list(_LAYOUTS.values())
    by_layout = [
        {one: reason for one in asked if (reason := _reason(engine, layout, one, bool(method)))}
        for layout in layouts
    ]
    return min(by_layout, key=len)


def _reason(engine: Engine, layout: str, asked: Asked, written: bool) -> str:
    scheme, experts = asked
    choices = (scheme,) if written else _STORED_AS.get(scheme, (scheme,))
    found = [scheme_support(engine, layout, choice, experts=experts) for choice in choices]
    return found[0][1] if all(level is Level.NO for level, _ in found) else ""
