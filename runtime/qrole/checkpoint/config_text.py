"""Editing a JSON object as text, so that everything else in it stays as its author wrote it."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["with_key"]

_SPACE = re.compile(r"\s*")


def with_key(text: str, key: str, value: Any) -> str:
    """A JSON object's text with one top-level key set.

    An existing value is replaced where it stands; a new key is added at the end. Indentation
    follows the text.

    Args:
        text: A JSON object.
        key: The key.
        value: Any JSON value.

    Raises:
        ValueError: The text is no JSON object.
    """
    members = list(_members(text))
    indent = _indent(text)
    rendered = json.dumps(value, indent=len(indent) or None).replace("\n", f"\n{indent}")
    for name, start, end in members:
        if name == key:
            return text[:start] + rendered + text[end:]
    close = text.rindex("}")
    at = members[-1][2] if members else text.index("{") + 1
    separator = "," if members else ""
    newline = f"\n{indent}" if indent else (" " if members else "")
    tail = text[at:close] if members else ""
    if not tail.strip() and indent:
        tail = tail or "\n"
    return f"{text[:at]}{separator}{newline}{json.dumps(key)}: {rendered}{tail}{text[close:]}"


def _members(text: str) -> list[tuple[str, int, int]]:
    """Key, begin and end of the value of each top-level member."""
    decoder = json.JSONDecoder()
    if not isinstance(json.loads(text), dict):
        raise ValueError("the text is no JSON object")
    at = text.index("{") + 1
    members = []
    while text[at := _skip(text, at)] != "}":
        if text[at] == ",":
            at = _skip(text, at + 1)
        key, at = decoder.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, at = decoder.raw_decode(text, start)
        members.append((key, start, at))
    return members


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _indent(text: str) -> str:
    """The white space before the first key; `""` for an object on one line."""
    found = re.match(r'\s*\{[ \t]*\r?\n([ \t]+)"', text)
    if found:
        return found[1]
    return "" if re.match(r'\s*\{\s*"', text) else "  "
