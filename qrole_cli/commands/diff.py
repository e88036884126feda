"""`qrole diff`: two plans side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from qrole_cli import console
from qrole_cli.console import Column, OutputFormat, finish, paragraph, show
from qrole_cli.options import (
    AttentionOption,
    FormatOption,
    JsonOption,
    RemoteCodeOption,
    chosen_format,
)

if TYPE_CHECKING:
    from qrole.diff import Change
    from qrole.plans import Inventory

__all__ = ["differing", "register", "show_changes"]

_COLUMNS = (Column("where", path=True), Column("before"), Column("after"))
_SIDE = "A factory, a rules file, a .lock file, qrole_manifest.json, or a written checkpoint."


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command(rich_help_panel="Plan")
    def diff(
        one: Annotated[str, typer.Argument(metavar="A", help=_SIDE, show_default=False)],
        two: Annotated[str, typer.Argument(metavar="B", help=_SIDE, show_default=False)],
        model: Annotated[
            str | None,
            typer.Option("--model", metavar="MODEL", help="What factories are asked about."),
        ] = None,
        attention: AttentionOption = False,
        trust_remote_code: RemoteCodeOption = False,
        output: FormatOption = OutputFormat.TABLE,
        as_json: JsonOption = False,
    ) -> None:
        """Compare two plans, equal changes together; exit 1 where they differ.

        Example: qrole diff mxfp8 nvfp4 --model sample_models/llama_tiny.py
        """
        from qrole.api import inspect
        from qrole.diff import compare_sides, read_sides

        def inventory() -> Inventory:
            assert model is not None
            return inspect(model, attention=attention, trust_remote_code=trust_remote_code)

        sides = read_sides((one, two), inventory if model else None)
        changes = compare_sides(*sides)
        show_changes(changes, one, two, chosen_format(output, as_json))
        unit = "slot" if all(side.slots is not None for side in sides) else "weight"
        if changes:
            finish(False, differing(len(changes), unit))
            raise typer.Exit(1)
        finish(True, f"no {unit}s differ")


def differing(count: int, unit: str) -> str:
    """`1 slot differs`, `3 slots differ`."""
    from qrole.rows import counted

    return f"{counted(count, unit)} {'differs' if count == 1 else 'differ'}"


def show_changes(changes: list[Change], one: str, two: str, output: OutputFormat) -> None:
    """Prints changes: grouped as text, one by one in the other formats."""
    from qrole.diff import group_changes

    if output is OutputFormat.TABLE:
        for group in group_changes(changes):
            paragraph(Text(f"{group.count}x {group.text}", style="bold"), indent=0)
            for path, count in group.places:
                times = f" ({count})" if count > 1 else ""
                console.out.print(Text(f"  {path}{times}", style="cyan"))
        return
    rows = [[c.key, c.before or "", c.after or ""] for c in changes]
    payload = {
        "schema": "qrole.diff/1",
        "before": one,
        "after": two,
        "changes": [{"where": c.key, "before": c.before, "after": c.after} for c in changes],
    }
    show(_COLUMNS, rows, payload, output)
