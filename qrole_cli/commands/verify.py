"""`qrole verify`: reopen a written checkpoint and check it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qrole_cli.console import Column, OutputFormat, finish, note, progress, show, warn
from qrole_cli.options import FormatOption, JsonOption, chosen_format
from qrole_cli.verdicts import say_verdicts

if TYPE_CHECKING:
    from qrole.checkpoint.verification.report import VerifyReport

__all__ = ["register"]

_SHOWN = 20
_COLUMNS = (
    Column("layer", path=True),
    Column("scheme"),
    Column("SQNR dB", right=True),
    Column("max abs error", right=True),
)


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command(rich_help_panel="Checkpoints")
    def verify(
        directory: Annotated[
            Path,
            typer.Argument(
                metavar="DIR", help="What `qrole apply` has written.", show_default=False
            ),
        ],
        source: Annotated[
            str | None,
            typer.Option("--source", "-s", metavar="MODEL", help="Compare values with this model."),
        ] = None,
        output: FormatOption = OutputFormat.TABLE,
        as_json: JsonOption = False,
    ) -> None:
        """Check a quantized checkpoint against its declaration, and against its source.

        Example: qrole verify model-nvfp4 --source path/to/model
        """
        from qrole.api import verify as check

        with progress("verifying", unit="bytes") as bar:
            report = check(directory, source, on_progress=bar.update)
        chosen = chosen_format(output, as_json)
        if report.errors or chosen is OutputFormat.JSON:
            _show(report, chosen)
        for problem in report.problems[:_SHOWN]:
            warn(str(problem))
        say_verdicts(report.verdicts)
        finish(report.ok, _outcome(report))
        if not report.ok:
            raise typer.Exit(1)


def _show(report: VerifyReport, chosen: OutputFormat) -> None:
    errors = sorted(report.errors, key=lambda e: e.sqnr_db)
    rows = [[e.module, e.scheme, _decibels(e.sqnr_db), f"{e.max_abs_err:.3g}"] for e in errors]
    shown = rows if chosen is not OutputFormat.TABLE else rows[:_SHOWN]
    show(_COLUMNS, shown, report.to_json(), chosen, title="worst layers")
    if len(shown) < len(rows):
        note(f"{len(rows) - len(shown)} more layers; --format csv or --json shows all")


def _decibels(value: float) -> str:
    return "exact" if math.isinf(value) and value > 0 else f"{value:.1f}"


def _outcome(report: VerifyReport) -> str:
    schemes = ", ".join(f"{count} layers {name}" for name, count in report.schemes.items())
    if not report.ok:
        more = len(report.problems) - _SHOWN
        hidden = f", {more} not shown" if more > 0 else ""
        return f"{report.directory}: {len(report.problems)} problems{hidden}"
    text = f"{report.directory}: {report.tensors} tensors, {schemes}"
    if report.unchanged is None:
        return f"{text}; values were not compared (no --source)"
    return f"{text}; {report.unchanged} tensors unchanged"
