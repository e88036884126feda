"""`qrole report`: one HTML page out of saved JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qrole_cli import console
from qrole_cli.console import OutputFormat
from qrole_cli.options import JsonOption

__all__ = ["open_page", "register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command(rich_help_panel="Numbers")
    def report(
        sources: Annotated[
            list[Path],
            typer.Argument(
                metavar="JSON",
                help="What qrole inspect, audit and compare printed with --json.",
                show_default=False,
            ),
        ],
        output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path(
            "qrole-report.html"
        ),
        force: Annotated[bool, typer.Option("--force", help="Overwrite the page.")] = False,
        show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
        as_json: JsonOption = False,
    ) -> None:
        """Write a self-contained HTML page that needs no network.

        Example: qrole report inspect.json compare.json -o report.html
        """
        from qrole.reporting import write_report
        from qrole.rows import counted

        view = write_report(sources, output, force=force)
        held = {
            "slot": len(view.slots),
            "measurement": sum(map(len, view.cells)),
            "finding": len(view.findings),
        }
        if as_json:
            counts = {f"{noun}s": count for noun, count in held.items()}
            payload = {"schema": "qrole.report/1", "page": str(output), **counts}
            console.show((), (), payload, OutputFormat.JSON)
        texts = [counted(count, noun) for noun, count in held.items()]
        console.finish(None, f"wrote {output}: {', '.join(texts)}")
        if show:
            open_page(output)


def open_page(page: Path) -> None:
    """Opens a page in the user's browser; says so where there is none."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        console.warn(f"no browser to open {page} with")
