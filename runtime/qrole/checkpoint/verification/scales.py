"""Scales and codes by themselves: finite, positive, no NaN codes, shared where engines join."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from qrole.checkpoint.layouts import Content
from qrole.checkpoint.verification.decoding import StoredLayer
from qrole.checkpoint.verification.reading import Reader

__all__ = ["check_codes", "check_fused", "check_numbers"]

Complain = Callable[[str, str, str], None]

_NUMBERS = (
    Content.WEIGHT_MULTIPLIER,
    Content.WEIGHT_DIVISOR,
    Content.INPUT_MULTIPLIER,
    Content.INPUT_DIVISOR,
)


def check_numbers(layer: StoredLayer, reader: Reader, complain: Complain) -> None:
    """Every scale that is one number is finite and positive."""
    for content in _NUMBERS:
        info = layer.parts.get(content)
        if info is None:
            continue
        value = reader.number(info)
        if not (math.isfinite(value) and value > 0):
            complain("bad-scale", info.name, f"is {value}, not finite and positive")


def check_codes(layer: StoredLayer, reader: Reader, complain: Complain) -> None:
    """No code and no block scale is a NaN; fp32 scales are positive; none is stored as E8M0."""
    import torch

    data = reader.raw(layer.parts[Content.DATA])
    if layer.encoding.element_bits == 8 and bool(((data & 0x7F) == 0x7F).any()):
        complain("nan-code", layer.parts[Content.DATA].name, "holds NaN codes")
    info = layer.parts.get(Content.SCALE)
    if info is None:
        return
    scales = reader.rows(info)
    if scales.dtype is not torch.uint8:
        if not bool((scales.isfinite() & (scales > 0)).all()):
            complain("bad-scale", info.name, "holds scales that are not finite and positive")
    elif info.dtype == "F8_E4M3":
        if bool(((scales & 0x7F) == 0x7F).any()):
            complain("bad-scale", info.name, "holds NaN block scales")
        if bool((scales & 0x80).any()):
            complain("bad-scale", info.name, "holds negative block scales")
    elif bool((scales == 0xFF).any()):
        complain("bad-scale", info.name, "holds NaN block scales (0xFF)")


def check_fused(
    groups: Mapping[str, tuple[str, ...]],
    layers: Mapping[str, StoredLayer],
    schemes: Mapping[str, str],
    reader: Reader,
    complain: Complain,
) -> None:
    """What engines join has one scheme and one global scale."""
    for members in dict.fromkeys(groups.values()):
        found = {member: schemes.get(member, "high precision") for member in members}
        if len(set(found.values())) > 1:
            texts = ", ".join(f"{member} {scheme}" for member, scheme in found.items())
            complain("fused-schemes", members[0], f"engines join {texts}")
            continue
        for content in _NUMBERS:
            values = {
                member: reader.number(layers[member].parts[content])
                for member in members
                if member in layers and content in layers[member].parts
            }
            if len(set(values.values())) > 1:
                texts = ", ".join(f"{member} {value:g}" for member, value in values.items())
                complain("fused-scales", members[0], f"engines keep one {content} of {texts}")
