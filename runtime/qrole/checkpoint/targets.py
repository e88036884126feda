"""Module names as few, disjoint patterns: the `targets` and `ignore` lists of a config.

Engines read a string as a full name, or after `re:` as a regular expression that they match from
the start of a name (`re.match`), so every pattern here ends in `$`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

__all__ = ["hits", "patterns"]

_ANY = r"\d+"
_DOT = r"\."
_EXPERTS = "experts"
_Parts = tuple[str, ...]


def patterns(chosen: Iterable[str], everything: Iterable[str]) -> tuple[str, ...]:
    r"""Patterns that hit every chosen name and no other one.

    Numbers that do not matter become `\d+`; the pattern starts as late in the name as it can, so
    that it survives another prefix (`model.`, `language_model.`).

    Args:
        chosen: Full module names.
        everything: All module names of the model, the chosen ones included.
    """
    wanted = set(chosen)
    others = _by_template(set(everything) - wanted)
    found: list[_Parts] = []
    for template, names in sorted(_by_template(wanted).items()):
        if _ANY not in template or template not in others:
            found.append(template)
        else:
            found += _enumerated([tuple(n.split(".")) for n in names], template)
    merged = _merge_last(found)
    rest = [name for names in others.values() for name in names]
    return tuple(sorted(_shortest(parts, wanted, rest) for parts in merged))


def hits(pattern: str, name: str) -> bool:
    """Whether an engine takes `name` for `pattern`; class names are not looked at."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    return pattern == name


def _by_template(names: Collection[str]) -> dict[_Parts, list[str]]:
    found: dict[_Parts, list[str]] = defaultdict(list)
    for name in names:
        parts = name.split(".")
        found[tuple(_ANY if p.isdigit() else re.escape(p) for p in parts)].append(name)
    return found


def _enumerated(names: Sequence[_Parts], template: _Parts) -> list[_Parts]:
    """The names of one template with their numbers spelled out, equal tails joined."""
    at = next((i for i, part in enumerate(template) if part == _ANY), None)
    if at is None:
        return [template]
    tails: dict[str, list[_Parts]] = defaultdict(list)
    for name in names:
        tails[name[at]].append(tuple(name[at + 1 :]))
    numbers: dict[frozenset[_Parts], list[str]] = defaultdict(list)
    for number, tail in tails.items():
        numbers[frozenset(tail)].append(number)
    found: list[_Parts] = []
    for tail_set, chosen in numbers.items():
        spelled = _alternatives(sorted(chosen, key=int))
        rest = _enumerated(sorted(tail_set), template[at + 1 :])
        found += [(*template[:at], spelled, *tail_parts) for tail_parts in rest]
    return found


def _merge_last(found: Iterable[_Parts]) -> list[_Parts]:
    """Patterns that differ in their last component only become one."""
    by_start: dict[_Parts, list[str]] = defaultdict(list)
    for parts in found:
        by_start[parts[:-1]].append(parts[-1])
    merged: list[_Parts] = []
    for start, last in by_start.items():
        if start and _ANY not in last:
            merged.append((*start, _alternatives(sorted(last))))
        else:
            merged += [(*start, part) for part in last]
    return merged


def _alternatives(options: Sequence[str]) -> str:
    return options[0] if len(options) == 1 else f"({'|'.join(options)})"


def _shortest(parts: _Parts, wanted: Collection[str], rest: Collection[str]) -> str:
    """The pattern from the latest component on at which it hits nothing that is not wanted."""
    plain = ".".join(parts).replace("\\", "")
    if plain in wanted:
        return plain
    for start in _starts(parts):
        body = _DOT.join(parts[start:])
        expression = re.compile(f".*{body}$")
        if not any(expression.match(name) for name in rest):
            return f"re:.*{body}$"
    return f"re:{_DOT.join(parts)}$"


def _starts(parts: _Parts) -> range:
    """Where a pattern may start: behind the numbers that do not matter, before those that do."""
    spelled = [i for i, p in enumerate(parts[:-1]) if p.isdigit() or p[:2] in _SPELLED]
    if spelled:
        latest = max(spelled[0] - 1, 0)
    else:
        free = [i for i, part in enumerate(parts) if part == _ANY]
        latest = min(free[-1] + 1 if free else 0, len(parts) - 1)
    if _EXPERTS in parts:  # transformers finds the experts' group by this word
        latest = min(latest, max(parts.index(_EXPERTS) - 1, 0))
    return range(latest, -1, -1)


_SPELLED = tuple(f"({digit}" for digit in "0123456789")
