"""Which candidates may be used for which unit: shapes that fit, engines that load the format."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qrole.checkpoint.engines import Level, scheme_level
from qrole.checkpoint.schemes import Fp8Mode, scheme_of, weight_format
from qrole.errors import ConfigError
from qrole.plans import Plan
from qrole.searching.units import Unit

__all__ = ["nbytes_of", "why_not"]


def nbytes_of(unit: Unit, plan: Plan) -> int:
    """Size of a unit's weights as a plan stores them, block scales included."""
    total = 0.0
    for module, group in unit.layers:
        weight = plan.of_module(module, group)["weight"]
        form = weight.rowwise
        bits = form.bits_per_element if form is not None else 16.0
        total += math.prod(weight.slot.shape or ()) * weight.slot.copies * bits / 8
    return math.ceil(total)


def why_not(unit: Unit, plan: Plan, engines: Sequence[str], layout: str) -> str:
    """Why a plan's formats cannot be used for a unit, `""` where they can.

    Args:
        unit: The unit.
        plan: The candidate's plan.
        engines: Engines that have to load the result.
        layout: Layout of the checkpoint.

    Raises:
        UnknownNameError: There is no such engine.
    """
    for module, group in unit.layers:
        decisions = plan.of_module(module, group)
        weight = decisions["weight"]
        if weight.rowwise is None:
            return weight.error
        if weight.rowwise.family == "high_precision":
            continue
        try:
            stored, _ = weight_format(weight.rowwise, Fp8Mode.STATIC)
            assert stored is not None
            given = decisions.get("input")
            scheme, _ = scheme_of(stored, given.rowwise if given else None, Fp8Mode.STATIC, False)
        except ConfigError as error:
            return error.given
        columns = (weight.slot.shape or (0,))[-1]
        if columns % scheme.stored.columns:
            return f"{columns} columns are no multiple of {scheme.stored.columns}"
        for engine in engines:
            if scheme_level(engine, layout, scheme.name) is Level.NO:
                return f"{engine} does not load {scheme.name}"
    return ""
