"""Many paths in few words: `layers.0-27.mlp.{gate,up}_proj` for fifty-six of them."""

from __future__ import annotations

from collections.abc import Iterable

from qrole.folding import fold

__all__ = ["summarize_places"]


def summarize_places(paths: Iterable[str]) -> list[tuple[str, int]]:
    """Runs of equal layers folded, and last names that go together joined in braces.

    Args:
        paths: Dotted paths; each counts as often as it occurs.

    Returns:
        Text and number of paths, in the order of the first ones.
    """
    folded = fold(paths, lambda path: path, lambda _: 0)
    groups: dict[tuple[str, int], list[str]] = {}
    for place in folded:
        parent, dot, last = place.path.rpartition(".")
        whole = not dot or ":" in place.path or last[:1].isdigit()
        key = (place.path, len(place.items)) if whole else (parent, len(place.items))
        groups.setdefault(key, []).append("" if whole else last)
    return [(_join(parent, lasts), n * len(lasts)) for (parent, n), lasts in groups.items()]


def _join(parent: str, lasts: list[str]) -> str:
    names = list(dict.fromkeys(lasts))
    if names == [""]:
        return parent
    return f"{parent}.{names[0] if len(names) == 1 else _braces(names)}"


def _braces(names: list[str]) -> str:
    """Names in braces, what they end with alike after them: `{q,k,v}_proj`."""
    _, underscore, last = names[0].rpartition("_")
    tail = underscore + last if all(name.endswith(underscore + last) for name in names) else ""
    heads = [name.removesuffix(tail) for name in names]
    return f"{{{','.join(heads)}}}{tail}" if all(heads) else f"{{{','.join(names)}}}"
