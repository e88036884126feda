"""`qrole factories`: the factories that installed packages offer."""

from __future__ import annotations

import typer

from qrole_cli.console import Column, OutputFormat, show
from qrole_cli.options import FormatOption, JsonOption, chosen_format

__all__ = ["register"]

_COLUMNS = (
    Column("factory", style="bold"),
    Column("package", drop=1),
    Column("source", drop=2),
    Column("description"),
)


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command(rich_help_panel="Plan")
    def factories(
        output: FormatOption = OutputFormat.TABLE,
        as_json: JsonOption = False,
    ) -> None:
        """List the factories that `--factory` takes by name, with their source.

        Example: qrole factories
        """
        from qrole.plugins import list_factories

        entries = list_factories()
        rows = [[e.name, e.package, e.target, e.doc] for e in entries]
        payload = {
            "schema": "qrole.factories/1",
            "factories": [
                {"name": e.name, "description": e.doc, "target": e.target, "package": e.package}
                for e in entries
            ],
        }
        show(_COLUMNS, rows, payload, chosen_format(output, as_json))
