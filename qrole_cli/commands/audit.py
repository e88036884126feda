"""`qrole audit`: what is wrong with a plan, or with a written checkpoint."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from qrole_cli import console
from qrole_cli.console import Column, OutputFormat, finish, note, paragraph, show
from qrole_cli.options import (
    AttentionOption,
    JsonOption,
    ModelArgument,
    OptionalFactoryOption,
    RemoteCodeOption,
)

if TYPE_CHECKING:
    from qrole.auditing import AuditReport, FindingGroup

__all__ = ["register"]


class AuditFormat(StrEnum):
    """How the findings are printed."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    CSV = "csv"
    GITHUB = "github"
    SARIF = "sarif"


_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
_PLACES = 6
_COLUMNS = (
    Column("code"),
    Column("severity"),
    Column("where", path=True),
    Column("message"),
    Column("to do"),
)


def complete_engine(incomplete: str) -> list[str]:
    from qrole.auditing import Engine

    return [name for name in Engine if name.startswith(incomplete)]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command(rich_help_panel="Plan")
    def audit(
        model: ModelArgument,
        factory: OptionalFactoryOption = None,
        select: Annotated[
            list[str] | None,
            typer.Option("--select", metavar="QR", help="Only these codes or prefixes (QR3)."),
        ] = None,
        ignore: Annotated[
            list[str] | None,
            typer.Option("--ignore", metavar="QR", help="Leave these codes or prefixes out."),
        ] = None,
        target: Annotated[
            str | None,
            typer.Option(metavar="sm_NN", help="Check that this GPU runs the formats."),
        ] = None,
        engine: Annotated[
            list[str] | None,
            typer.Option(
                metavar="NAME",
                help="Check that vllm, sglang, trtllm or transformers loads the result.",
                autocompletion=complete_engine,
            ),
        ] = None,
        tensor_parallel: Annotated[
            int | None,
            typer.Option(min=1, metavar="N", help="GPUs that share every layer."),
        ] = None,
        fp8_dpa: Annotated[
            bool, typer.Option("--fp8-dpa", help="The recipe runs attention in FP8.")
        ] = False,
        sequence_length: Annotated[
            int | None, typer.Option(min=1, metavar="N", help="Tokens of a sequence.")
        ] = None,
        inference: Annotated[
            bool, typer.Option("--inference", help="Only the forward pass matters.")
        ] = False,
        weights: Annotated[
            bool, typer.Option("--weights", help="Read stored weights: NaN, inf, zeros.")
        ] = False,
        attention: AttentionOption = False,
        readings: Annotated[
            bool, typer.Option("--readings", help="Show what each engine reads a checkpoint as.")
        ] = False,
        trust_remote_code: RemoteCodeOption = False,
        output: Annotated[
            AuditFormat,
            typer.Option(
                "--format", metavar="FORMAT", help="table, json, markdown, csv, github or sarif."
            ),
        ] = AuditFormat.TABLE,
        as_json: JsonOption = False,
    ) -> None:
        """Find what is wrong with a plan before a GPU is booked; exit 1 for errors and warnings.

        With --factory it is the plan that the factory makes of the model; without, what a written
        checkpoint declares.

        Settings are also read from the table tool.qrole of the nearest pyproject.toml.

        Example: qrole audit sample_models/mlp.py --factory nvfp4 --target sm_100
        """
        from qrole.api import audit as find
        from qrole.auditing import load_settings

        ignored = _codes(ignore)
        report = find(
            model,
            factory,
            select=_codes(select),
            ignore=ignored,
            target=target,
            engines=engine or (),
            tensor_parallel=tensor_parallel,
            fp8_dpa=fp8_dpa,
            sequence_length=sequence_length,
            inference=inference,
            weights=weights,
            settings=Path.cwd(),
            attention=attention,
            trust_remote_code=trust_remote_code,
        )
        chosen = AuditFormat.JSON if as_json else output
        if readings and chosen is AuditFormat.TABLE:
            _print_readings(report)
        _print(report, chosen)
        for text in report.notes:
            note(text)
        finish(not report.failed(), _outcome(report, len(load_settings().ignore) + len(ignored)))
        if report.failed():
            raise typer.Exit(1)


def _codes(given: list[str] | None) -> tuple[str, ...]:
    """Codes of a repeatable option, commas allowed."""
    return tuple(name.strip() for item in given or () for name in item.split(",") if name.strip())


def _print(report: AuditReport, output: AuditFormat) -> None:
    from qrole.auditing.output import github_annotations, report_payload, sarif_log

    if output is AuditFormat.TABLE:
        _print_groups(report)
    elif output is AuditFormat.GITHUB:
        console.write("".join(f"{line}\n" for line in github_annotations(report)))
    elif output is AuditFormat.SARIF:
        console.write(json.dumps(sarif_log(report), indent=2) + "\n")
    else:
        rows = [
            [f.code.name, str(f.code.severity), f.hit.where, f.hit.text, f.hit.to_do]
            for f in report.findings
        ]
        show(_COLUMNS, rows, report_payload(report), OutputFormat(output.value))


def _print_readings(report: AuditReport) -> None:
    """What is stored and what each engine reads, runs of equal layers as one row."""
    from qrole.folding import fold

    readers = list(report.readings)

    def labels(module: str) -> tuple[str, ...]:
        return tuple(report.readings[reader].get(module, "not a layer") for reader in readers)

    folded = fold(report.readings.get("stored", {}), lambda module: module, labels)
    rows = [[group.path, str(len(group.items)), *labels(group.items[0])] for group in folded]
    columns = [Column("module", path=True), Column("xN", right=True), *map(Column, readers)]
    show(columns, rows, {}, OutputFormat.TABLE)
    console.out.print()


def _print_groups(report: AuditReport) -> None:
    """Findings by code, worst first; equal ones once, with their places."""
    from qrole.auditing import group_findings

    last = ""
    for group in group_findings(report.findings):
        if group.code.name != last:
            heading = Text.assemble(
                ("\n" if last else ""),
                (f"{group.code.name} {group.code.severity}", _STYLES[group.code.severity]),
                (f"  {group.code.summary}", "bold"),
            )
            console.out.print(heading)
            last = group.code.name
        _print_group(group)


def _print_group(group: FindingGroup) -> None:
    out = console.out
    for place in group.places[:_PLACES]:
        paragraph(Text(str(place), style="cyan"), indent=2)
    if len(group.places) > _PLACES:
        out.print(Text(f"  and {len(group.places) - _PLACES} more places", style="cyan"))
    paragraph(group.hit.message, indent=4)
    if group.hit.file and not any(p.path.startswith(group.hit.file) for p in group.places):
        line = f":{group.hit.line}" if group.hit.line else ""
        out.print(Text(f"    decided at {group.hit.file}{line}", style="dim"), soft_wrap=True)
    paragraph(Text.assemble(("to do: ", "bold"), group.hit.to_do), indent=4)


def _outcome(report: AuditReport, ignored: int) -> str:
    from qrole.rows import counted

    counts = ", ".join(counted(n, severity) for severity, n in report.counts().items())
    what = counted(report.slots, "slot" if report.factory else "weight")
    left_out = f", {ignored} ignored" if ignored else ""
    return f"{counts} in {what}; {counted(report.checks, 'code')} checked{left_out}"
