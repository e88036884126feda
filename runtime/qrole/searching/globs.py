"""Few globs for a set of module paths: greedy cover by patterns that hit nothing else."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from fnmatch import translate

__all__ = ["cover"]


def cover(wanted: Collection[str], forbidden: Collection[str]) -> list[str]:
    """Globs that match every wanted path and no forbidden one, few and general ones first.

    Paths in neither may be matched. The cover is greedy, so it is short, not provably shortest.

    Args:
        wanted: Module paths; disjoint from `forbidden`.
        forbidden: Module paths that no glob may match.
    """
    left = set(wanted)
    reach: dict[str, set[str]] = {}
    for path in sorted(wanted):
        for pattern in _patterns(path):
            if pattern in reach:
                continue
            matches = re.compile(translate(pattern)).match
            hit = {other for other in wanted if matches(other)}
            reach[pattern] = set() if any(matches(other) for other in forbidden) else hit
    globs = []
    while left:
        # Of equal reach the more special glob wins: it says more, and misses less on other models.
        best = max(reach, key=lambda p: (len(reach[p] & left), -p.count("*"), len(p), p))
        globs.append(best)
        left -= reach[best]
    return globs


def _patterns(path: str) -> Iterator[str]:
    """The path itself, with its numbers open, and with its end open at each dot."""
    parts = path.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit()]
    opened = [parts]
    for i in numbers:
        opened += [[*p[:i], "*", *p[i + 1 :]] for p in opened]
    for form in opened:
        yield ".".join(form)
        for end in range(1, len(form)):
            yield ".".join([*form[:end], "*"])
    yield "*"
