"""Few patterns for a set of module paths as rules files write them: globs or expressions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from fnmatch import translate

from qrole.folding import block_of

__all__ = ["cover"]


def cover(wanted: Collection[str], forbidden: Collection[str]) -> list[str]:
    """Patterns that match every wanted path and no forbidden one.

    Globs by greedy cover, or one expression per set of blocks, whichever is shorter; short, not
    provably shortest. Paths in neither may be matched.

    Args:
        wanted: Module paths; disjoint from `forbidden`.
        forbidden: Module paths that no pattern may match.
    """
    return min(_globs(wanted, forbidden), _expressions(wanted), key=len)


def _globs(wanted: Collection[str], forbidden: Collection[str]) -> list[str]:
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


def _expressions(wanted: Collection[str]) -> list[str]:
    r"""One expression per stack and set of blocks: `re:layers\\.(0|7)\\.mlp\\.(up|down)_proj`."""
    blocks: dict[tuple[str, str], set[int]] = defaultdict(set)
    plain = []
    for path in wanted:
        block, within = block_of(path)
        stack, _, index = block.rpartition(".")
        if within:
            blocks[stack, within].add(int(index))
        else:
            plain.append(path)
    kinds: dict[tuple[str, frozenset[int]], list[str]] = defaultdict(list)
    for (stack, within), indexes in blocks.items():
        kinds[stack, frozenset(indexes)].append(within)
    found = [
        f"re:{re.escape(stack)}\\.{_any([str(i) for i in sorted(indexes)])}\\.{_any(sorted(some))}"
        for (stack, indexes), some in sorted(kinds.items(), key=lambda item: str(item))
    ]
    return [*found, *sorted(plain)]


def _any(texts: list[str]) -> str:
    escaped = [re.escape(text) for text in texts]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"
