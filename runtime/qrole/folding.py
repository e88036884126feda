"""Blocks and runs of equal layers: `layers.0-29.mlp.down_proj` stands for thirty of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Folded", "block_of", "fold"]

T = TypeVar("T")
_Range = tuple[int, int]
_Part = str | _Range


@dataclass(frozen=True)
class Folded(Generic[T]):
    """Items whose paths differ only in numbers that make up complete ranges.

    Attributes:
        path: The common path, ranges written `first-last`.
        items: The items, in their original order.
    """

    path: str
    items: tuple[T, ...]


def fold(
    items: Iterable[T], path: Callable[[T], str], key: Callable[[T], Hashable]
) -> list[Folded[T]]:
    """Groups items of equal key whose paths differ only in consecutive numbers.

    Args:
        items: Anything with a dotted path.
        path: The item's dotted path; whole-number parts of it may be folded.
        key: Items fold only with items of equal key.

    Returns:
        Groups, in the order of their first items.
    """
    groups: list[tuple[tuple[_Part, ...], Hashable, list[tuple[int, T]]]] = [
        (_parts(path(item)), key(item), [(i, item)]) for i, item in enumerate(items)
    ]
    depth = max((len(parts) for parts, _, _ in groups), default=0)
    for position in reversed(range(depth)):
        groups = _merge(groups, position)
    groups.sort(key=lambda group: min(i for i, _ in group[2]))
    return [
        Folded(_text(parts), tuple(item for _, item in sorted(found, key=lambda pair: pair[0])))
        for parts, _, found in groups
    ]


_BLOCK = re.compile(r"^(?P<block>.*?\.\d+)\.(?P<rest>.+)$")


def block_of(path: str) -> tuple[str, str]:
    """The block that a path lies in and its path within: `layers.3`, `mlp.down_proj`.

    A block is what comes before the first number and that number; a path without one is a block of
    its own, with `""` within.
    """
    match = _BLOCK.match(path)
    return (match["block"], match["rest"]) if match else (path, "")


def _merge(
    groups: list[tuple[tuple[_Part, ...], Hashable, list[tuple[int, T]]]], position: int
) -> list[tuple[tuple[_Part, ...], Hashable, list[tuple[int, T]]]]:
    """Joins groups that differ only in the number at `position` and lie side by side."""
    merged: list[tuple[tuple[_Part, ...], Hashable, list[tuple[int, T]]]] = []
    last: dict[Hashable, int] = {}
    for parts, key, found in groups:
        number = parts[position] if position < len(parts) else ""
        if isinstance(number, str):
            merged.append((parts, key, found))
            continue
        rest = (parts[:position], parts[position + 1 :], key)
        at = last.get(rest)
        if at is not None:
            before = merged[at][0][position]
            assert not isinstance(before, str)
            if before[1] + 1 == number[0]:
                joined = (*parts[:position], (before[0], number[1]), *parts[position + 1 :])
                merged[at] = (joined, key, merged[at][2] + found)
                continue
        last[rest] = len(merged)
        merged.append((parts, key, found))
    return merged


def _parts(path: str) -> tuple[_Part, ...]:
    return tuple(
        (int(part), int(part)) if re.fullmatch(r"\d+", part) else part for part in path.split(".")
    )


def _text(parts: tuple[_Part, ...]) -> str:
    def one(part: _Part) -> str:
        if isinstance(part, str):
            return part
        return str(part[0]) if part[0] == part[1] else f"{part[0]}-{part[1]}"

    return ".".join(one(part) for part in parts)
