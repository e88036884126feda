"""Fused neighbours: layers that engines join into one, which must share scheme and global scale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qrole.errors import UsageError

__all__ = ["DEFAULT_FUSIONS", "Fusion", "absent_siblings", "fused_groups", "parse_fusion"]


@dataclass(frozen=True)
class Fusion:
    """Last name components that engines join when they stand beside each other.

    Invariant: at least two names.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        assert len(self.names) > 1, "at least two names"


DEFAULT_FUSIONS = (
    Fusion(("q_proj", "k_proj", "v_proj")),
    Fusion(("query", "key", "value")),
    Fusion(("to_q", "to_k", "to_v")),
    Fusion(("wq", "wk", "wv")),
    Fusion(("gate_proj", "up_proj")),
    Fusion(("w1", "w3")),
    Fusion(("q_a_proj", "kv_a_proj_with_mqa")),
)


def parse_fusion(text: str) -> Fusion:
    """`a,b,c`.

    Raises:
        UsageError: Fewer than two names.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if len(names) < 2:
        raise UsageError(
            f"{text!r} joins nothing",
            expected="two or more last name components, separated by commas",
            hint="such as 'to_q,to_k,to_v'",
        )
    return Fusion(names)


def fused_groups(
    modules: Iterable[str], fusions: Iterable[Fusion] = DEFAULT_FUSIONS
) -> dict[str, tuple[str, ...]]:
    """The fused group of every module that has neighbours, by module.

    Args:
        modules: Module paths; siblings have equal paths but for the last component.
        fusions: Which last components belong together.

    Returns:
        For each member of a group of at least two: all members, in the fusion's order.
    """
    by_name: dict[str, Fusion] = {}
    for fusion in fusions:
        for name in fusion.names:
            by_name.setdefault(name, fusion)
    siblings: dict[str, list[str]] = {}
    for path in modules:
        parent, name = _split(path)
        if name in by_name:
            siblings.setdefault(parent, []).append(name)
    groups: dict[str, tuple[str, ...]] = {}
    joined: dict[tuple[str, ...], list[tuple[str, ...]]] = {}  # few sets of siblings are distinct
    for parent, found in siblings.items():
        names = tuple(found)
        if names not in joined:
            joined[names] = _joined(names, by_name)
        for together in joined[names]:
            members = tuple([parent + name for name in together])
            groups.update(dict.fromkeys(members, members))
    return groups


def _joined(names: tuple[str, ...], by_name: Mapping[str, Fusion]) -> list[tuple[str, ...]]:
    """Which of a parent's children are one layer in engines."""
    found: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for name in names:
        together = tuple(n for n in by_name[name].names if n in names)
        if name not in seen and len(together) > 1:
            found.append(together)
            seen.update(together)
    return found


def absent_siblings(
    groups: Mapping[str, tuple[str, ...]], fusions: Iterable[Fusion] = DEFAULT_FUSIONS
) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Names that a group's fusion has and the model has not, by group.

    Engines look every shard of a fused layer up, also one that this model has no weight for.
    """
    absent: dict[tuple[str, ...], tuple[str, ...]] = {}
    for members in dict.fromkeys(groups.values()):
        parent, name = _split(members[0])
        names = next(f.names for f in fusions if name in f.names)
        missing = tuple(parent + n for n in names if parent + n not in members)
        if missing:
            absent[members] = missing
    return absent


def _split(path: str) -> tuple[str, str]:
    parent, dot, name = path.rpartition(".")
    return parent + dot, name
