"""Markdown that the generated pages share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["cell", "table"]


def cell(text: Any) -> str:
    """Text on one line, safe in a table."""
    return " ".join(str(text or "").split()).replace("|", "\\|")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)
