"""Lists of names and patterns in configs, looked up fast enough for a hundred thousand modules."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Entries", "Entry", "class_target"]


@dataclass(frozen=True)
class Entry:
    """One entry of a list.

    Attributes:
        owner: What it belongs to, such as the group of a target; `""` for lists without groups.
        text: As it is written.
    """

    owner: str
    text: str


def class_target(text: str) -> bool:
    """Whether an entry names a class rather than a module."""
    return not text.startswith("re:") and "." not in text and text[:1].isupper()


class Entries:
    """Entries in order; full names are found by hash, patterns are tried one by one.

    Args:
        entries: In the order in which a reader tries them.
        globs: Entries are globs; otherwise full names, or regular expressions after `re:` that are
            matched from the start of a name.
    """

    def __init__(self, entries: Iterable[Entry], *, globs: bool = False) -> None:
        self._all = list(entries)
        self._names: dict[str, list[int]] = {}
        self._patterns: list[tuple[int, Callable[[str], object]]] = []
        for i, entry in enumerate(self._all):
            if globs and re.search(r"[*?\[]", entry.text):
                self._patterns.append((i, re.compile(fnmatch.translate(entry.text)).match))
            elif not globs and entry.text.startswith("re:"):
                self._patterns.append((i, _regular(entry.text[3:])))
            else:
                self._names.setdefault(entry.text, []).append(i)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._all)

    def matching(self, name: str) -> list[Entry]:
        """The entries that match a name, in order."""
        found = [i for i, matches in self._patterns if matches(name)]
        return [self._all[i] for i in sorted(found + self._names.get(name, []))]

    def first(self, name: str) -> Entry | None:
        """The first entry that matches a name."""
        found = self.matching(name)
        return found[0] if found else None

    def idle(self, names: Iterable[str]) -> list[Entry]:
        """The entries that match none of the names."""
        known = set(names)
        idle = {i for text, where in self._names.items() if text not in known for i in where}
        idle |= {i for i, matches in self._patterns if not any(matches(name) for name in known)}
        return [self._all[i] for i in sorted(idle)]


def _regular(text: str) -> Callable[[str], object]:
    """A matcher; an expression that does not compile matches nothing, as its readers would fail."""
    try:
        return re.compile(text).match
    except re.error:
        return lambda name: None
