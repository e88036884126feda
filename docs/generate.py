"""Writes what the documentation takes from the source: reference pages, and tables within pages.

`make docs` runs it; a test compares the committed pages with what it would write. A table within a
page stands between `<!-- from the source: name -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from docs.checkpoint_tables import (
    engine_tables,
    expert_table,
    fusion_table,
    scheme_table,
    tensor_tables,
)
from docs.commands import commands_page
from docs.format_tables import element_table, metric_table
from docs.schemas import schemas_page
from qrole.auditing.registry import documentation

DOCS = Path(__file__).parent


def benchmarks() -> str:
    """What the benchmarks' own page says below its introduction, headings one level down."""
    text = (DOCS.parent / "benchmarks" / "README.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## .*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return "\n\n".join(re.sub(r"^#", "##", s, flags=re.MULTILINE).strip() for s in sections)


_PAGES: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands_page,
    "reference/codes.md": documentation,
    "reference/schemas.md": schemas_page,
}
_TABLES: dict[str, Callable[[], str]] = {
    "schemes": scheme_table,
    "stored tensors": tensor_tables,
    "engines": engine_tables,
    "experts in transformers": expert_table,
    "fused neighbours": fusion_table,
    "elements": element_table,
    "metrics": metric_table,
    "benchmarks": benchmarks,
}
_GENERATED = "<!-- Written by docs/generate.py; change the source, not this page. -->"
_REGION = re.compile(r"(<!-- from the source: ([\w ]+) -->\n).*?(\n<!-- end -->)", re.DOTALL)


def generated() -> dict[str, str]:
    """Text of every page that is written, or holds a table that is, by path below `docs`."""
    pages = {name: f"{_GENERATED}\n\n{make().strip()}\n" for name, make in _PAGES.items()}
    for path in sorted(DOCS.rglob("*.md")):
        name = path.relative_to(DOCS).as_posix()
        text = path.read_text(encoding="utf-8")
        if name not in pages and _REGION.search(text):
            pages[name] = _REGION.sub(_filled, text)
    return pages


def _filled(match: re.Match[str]) -> str:
    return f"{match[1]}\n{_TABLES[match[2]]()}\n{match[3]}"


if __name__ == "__main__":
    for name, text in generated().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{DOCS / name}\n")
