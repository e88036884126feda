"""`qrole apply`: quantize a model's weights by a plan and write a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qrole_cli.console import finish, note, progress
from qrole_cli.options import FactoryOption, ModelArgument

if TYPE_CHECKING:
    from qrole.checkpoint.apply import ApplyReport

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command(rich_help_panel="Checkpoints")
    def apply(
        model: ModelArgument,
        factory: FactoryOption,
        output: Annotated[
            Path, typer.Option("--output", "-o", metavar="DIR", help="Must not exist yet.")
        ],
        weight_only: Annotated[
            bool, typer.Option("--weight-only", help="Leave activations in high precision.")
        ] = False,
        force: Annotated[bool, typer.Option("--force", help="Replace the output.")] = False,
    ) -> None:
        """Quantize a model's weights by a factory's plan and write them to safetensors.

        Example: qrole apply path/to/model -f nvfp4 -o model-nvfp4
        """
        from qrole.checkpoint.apply import apply as write
        from qrole.checkpoint.job import ApplyOptions

        options = ApplyOptions(weight_only=weight_only)
        with progress("quantizing", unit="bytes") as bar:
            report = write(
                model, factory, output, options=options, force=force, on_progress=bar.update
            )
        _say(report)
        finish(True, _outcome(report))


def _say(report: ApplyReport) -> None:
    if report.dropped_remains:
        note("the unfinished output of another job was in the way and was removed")
    if report.reused_bytes:
        note(f"reused {_size(report.reused_bytes)} that an earlier run had done")
    for text in report.notes:
        note(text)


def _outcome(report: ApplyReport) -> str:
    schemes = ", ".join(f"{count} layers {name}" for name, count in report.schemes.items())
    sizes = f"{_size(report.source_bytes)} to {_size(report.output_bytes)}"
    return f"{report.output}: {schemes}; {sizes}"


def _size(nbytes: int) -> str:
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"
