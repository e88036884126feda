"""`qrole explain`: what a code of the audit means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from qrole_cli import console
from qrole_cli.console import Column, OutputFormat, show
from qrole_cli.options import FormatOption, JsonOption, chosen_format

if TYPE_CHECKING:
    from qrole.auditing import Code

__all__ = ["register"]

_COLUMNS = (Column("code", style="cyan"), Column("severity"), Column("meaning"))


def complete_code(incomplete: str) -> list[str]:
    from qrole.auditing import codes

    return [name for name in codes() if name.startswith(incomplete.upper())]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command(rich_help_panel="Plan")
    def explain(
        code: Annotated[
            str | None,
            typer.Argument(
                metavar="[CODE]",
                help="Such as QR304; without it all codes are listed.",
                autocompletion=complete_code,
                show_default=False,
            ),
        ] = None,
        whole: Annotated[
            bool, typer.Option("--all", help="Everything about all codes, as Markdown.")
        ] = False,
        output: FormatOption = OutputFormat.TABLE,
        as_json: JsonOption = False,
    ) -> None:
        """Explain a code of the audit: what it means, why it matters, what to do.

        Example: qrole explain QR304
        """
        from qrole.auditing import codes, documentation, find_code

        if whole:
            console.write(documentation())
            return
        found = [find_code(code)] if code else list(codes().values())
        chosen = chosen_format(output, as_json)
        if code and chosen is OutputFormat.TABLE:
            _print(found[0])
            return
        rows = [[c.name, str(c.severity), c.summary] for c in found]
        show(_COLUMNS, rows, _payload(found), chosen)


def _print(code: Code) -> None:
    out = console.out
    out.print(Text.assemble((code.name, "bold"), f" ({code.severity}, {code.family})"))
    out.print(Text(f"{code.summary}.", style="bold"))
    for paragraph in code.explanation.split("\n\n"):
        out.print()
        out.print(Text(" ".join(paragraph.split())))


def _payload(found: list[Code]) -> dict[str, object]:
    return {
        "schema": "qrole.explain/1",
        "codes": [
            {
                "code": code.name,
                "severity": str(code.severity),
                "family": code.family,
                "meaning": code.summary,
                "explanation": code.explanation,
            }
            for code in found
        ],
    }
