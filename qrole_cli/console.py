"""What every command says and how: data on stdout, progress and log on stderr."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

__all__ = [
    "Column",
    "OutputFormat",
    "data_on_stdout",
    "err",
    "finish",
    "note",
    "out",
    "paragraph",
    "progress",
    "shorten",
    "shorten_all",
    "show",
    "warn",
    "write",
]

_NARROW = 80


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    terminal = stream is not None and stream.isatty()
    width = None if terminal or "COLUMNS" in os.environ else _NARROW
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


out = _console(stderr=False)
err = _console(stderr=True)


class _Settings:
    """Options of the root command that all commands obey."""

    quiet = False
    verbose = False


settings = _Settings()


@contextmanager
def data_on_stdout() -> Iterator[None]:
    """Keeps stdout for data while a command runs: what the user's own code prints goes to stderr.

    A model file that says hello when it is imported would make JSON unreadable.
    """
    out.file = sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        out.file = None  # type: ignore[assignment]  # rich: whatever sys.stdout is by then


def write(text: str) -> None:
    """Writes data on stdout as it is."""
    out.file.write(text)


class OutputFormat(StrEnum):
    """How a command prints its data."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    CSV = "csv"


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: Header.
        right: Align to the right (numbers).
        path: Holds module paths: shortened in the middle, never wrapped.
        style: Rich style of the cells.
        drop: Where the table is wider than the terminal, the column of the highest rank goes
            first, and a note says so; 0 stays.
    """

    name: str
    right: bool = False
    path: bool = False
    style: str = ""
    drop: int = 0


def show(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    payload: dict[str, Any],
    output: OutputFormat,
    *,
    title: str = "",
    wide: bool = False,
) -> None:
    """Prints a command's data on stdout in the format asked for.

    Args:
        columns: The table's columns.
        rows: Its cells; rich markup is not interpreted.
        payload: What JSON output holds; has the key `schema`.
        output: The format.
        title: Printed above a table.
        wide: Drop no column and break no cell of a table, however narrow the terminal.
    """
    if output is OutputFormat.JSON:
        write(json.dumps(payload, indent=2, sort_keys=True, allow_nan=False) + "\n")
    elif output is OutputFormat.CSV:
        write(_csv(columns, rows))
    elif output is OutputFormat.MARKDOWN:
        write(_markdown(columns, rows))
    else:
        if title:
            out.print(Text(title, style="bold"))
        kept = range(len(columns)) if wide else _fitting(columns, rows)
        shown = [columns[i] for i in kept]
        cells = [[row[i] for i in kept] for row in rows]
        out.print(_table(shown, cells, wide), crop=not wide)
        dropped = [column.name for column in columns if column not in shown]
        if dropped:
            note(
                f"columns that did not fit: {', '.join(dropped)} (a wider terminal or --format csv)"
            )


_PATH_AT_MOST = 36


def _fitting(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    """Indexes of the columns that fit; empty droppable columns go without a word being lost."""
    kept = list(range(len(columns)))

    def width(i: int) -> int:
        widest = max([len(columns[i].name), *(len(row[i]) for row in rows)])
        return min(widest, _PATH_AT_MOST) if columns[i].path else widest

    for i in sorted(kept, key=lambda i: -columns[i].drop):
        if columns[i].drop == 0 or sum(map(width, kept)) + len(kept) <= out.width:
            break
        kept.remove(i)
    return kept


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], wide: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    widths = [max([len(c.name), *(len(row[i]) for row in rows)]) for i, c in enumerate(columns)]
    needed = sum(widths) + len(widths)
    spare = 0 if wide else needed - out.width
    if wide and needed > out.width:
        table.width = needed
    for i, column in enumerate(columns):
        width = widths[i]
        if column.path and spare > 0:
            cut = min(spare, max(width - 16, 0))
            width, spare = width - cut, spare - cut
            short = shorten_all([row[i] for row in rows], width)
            rows = [[*row[:i], path, *row[i + 1 :]] for row, path in zip(rows, short, strict=True)]
        table.add_column(
            column.name,
            justify="right" if column.right else "left",
            style=column.style or None,
            no_wrap=column.path or column.right,
            overflow="fold",
            width=width if column.path else None,
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def shorten_all(paths: Sequence[str], width: int) -> list[str]:
    """Each path in at most `width` characters; those that would look alike show what differs."""
    alike: dict[str, set[str]] = {}
    for path in paths:
        alike.setdefault(shorten(path, width), set()).add(path)
    return [shorten(path, width, alike[shorten(path, width)]) for path in paths]


def shorten(path: str, width: int, apart_from: Collection[str] = ()) -> str:
    """A dotted path in at most `width` characters: numbers and the last name stay.

    `encoder.layer.3.attention.output.dense` in 28 is `….3.attention.output.dense`. Before the rest,
    the names stay in which it differs from the paths `apart_from`.
    """
    if len(path) <= width:
        return path
    parts = path.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit() or "-" in part]
    others = [other.split(".") for other in apart_from]
    differs = [i for i, part in enumerate(parts) if any(part not in other for other in others)]
    last = len(parts) - 1
    rest = [i for i in range(last - 1, -1, -1) if i not in numbers]
    kept: list[int] = []
    for i in dict.fromkeys([last, *differs, *numbers, *rest]):
        if len(_joined(parts, [*kept, i])) <= width:
            kept.append(i)
    if last in kept:
        return _joined(parts, kept)
    return f"{path[: width // 3]}…{path[len(path) - (width - 1 - width // 3) :]}"


def _joined(parts: list[str], kept: Sequence[int]) -> str:
    words: list[str] = []
    for i, part in enumerate(parts):
        if i in kept:
            words.append(part)
        elif not words or words[-1] != "…":
            words.append("…")
    return ".".join(words)


def _csv(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    writer.writerows(rows)
    return text.getvalue()


def _markdown(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"

    rule = line(["--:" if column.right else "---" for column in columns])
    return line([column.name for column in columns]) + rule + "".join(line(row) for row in rows)


def paragraph(text: Text | str, *, indent: int) -> None:
    """Prints text on stdout, each of its lines indented by so many columns."""
    whole = text if isinstance(text, Text) else Text(text)
    for line in whole.wrap(out, max(out.width - indent, 20)):
        line.rstrip()
        out.print(Text(" " * indent).append_text(line), soft_wrap=True)


def note(text: str) -> None:
    """A line for the user on stderr; silent with `--quiet`."""
    if not settings.quiet:
        err.print(Text(f"note: {text}", style="dim"), soft_wrap=True)


def warn(text: str) -> None:
    """A warning on stderr; not silenced by `--quiet`."""
    err.print(Text.assemble(("warning: ", "yellow"), text), soft_wrap=True)


def finish(ok: bool | None, text: str) -> None:
    """The last line of a command, on stderr: what came out of it.

    Args:
        ok: Passed or failed; None where nothing was judged.
        text: What was done, or what is wrong.
    """
    if settings.quiet and ok is not False:
        return
    words = {True: ("PASSED", "bold green"), False: ("FAILED", "bold red"), None: ("DONE", "bold")}
    err.print(Text.assemble(words[ok], f" {text}"), soft_wrap=True)


class ProgressReporter:
    """Told by a library function how far it is; `update` fits every `on_progress` callback."""

    def __init__(self, bar: Progress | None, description: str) -> None:
        self._bar = bar
        self._task = bar.add_task(description, total=None) if bar is not None else None

    def update(self, done: int, total: int | None, description: str = "") -> None:
        """Sets what is done of what; both in the unit given to `progress`."""
        if self._bar is not None and self._task is not None:
            changes: dict[str, Any] = {"description": description} if description else {}
            self._bar.update(self._task, completed=done, total=total, **changes)

    __call__ = update


@contextmanager
def progress(description: str, *, unit: str = "items") -> Iterator[ProgressReporter]:
    """A progress bar on stderr with rate and time left; silent with `-q` or without a terminal.

    Args:
        description: What is being done.
        unit: `bytes`, or the plural of what is counted.
    """
    if settings.quiet or not err.is_terminal:
        yield ProgressReporter(None, description)
        return
    counted = (
        (DownloadColumn(binary_units=True), TransferSpeedColumn())
        if unit == "bytes"
        else (MofNCompleteColumn(), TextColumn(unit))
    )
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        *counted,
        TimeRemainingColumn(),
        console=err,
        transient=True,
    )
    with bar:
        yield ProgressReporter(bar, description)
