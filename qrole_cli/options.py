"""Options that several commands share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qrole_cli.console import OutputFormat

__all__ = [
    "AttentionOption",
    "BatchSizeOption",
    "DataOption",
    "FactoriesOption",
    "FactoryOption",
    "FormatOption",
    "JsonOption",
    "ModelArgument",
    "OptionalFactoryOption",
    "RemoteCodeOption",
    "SamplesOption",
    "SeqLenOption",
    "chosen_format",
    "complete_factory",
]

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="model.py, model.py:attr, pkg.mod:attr, a HuggingFace-style directory, or a "
        ".safetensors file.",
        show_default=False,
    ),
]


def complete_factory(incomplete: str) -> list[str]:
    """Names of installed factories, for shell completion."""
    from qrole.plugins import list_factories

    return [entry.name for entry in list_factories() if entry.name.startswith(incomplete)]


_FACTORY = typer.Option(
    "--factory",
    "-f",
    metavar="F",
    help="An entry point (nvfp4), pkg.mod:fn, file.py:fn, or rules.toml.",
    autocompletion=complete_factory,
    show_default=False,
)
FactoryOption = Annotated[str, _FACTORY]
OptionalFactoryOption = Annotated[str | None, _FACTORY]
FactoriesOption = Annotated[
    list[str],
    typer.Option(
        "--factory",
        "-f",
        metavar="F",
        help="A candidate; may be given several times.",
        autocompletion=complete_factory,
        show_default=False,
    ),
]
_DATA = "Data"
DataOption = Annotated[
    Path | None,
    typer.Option(
        help="Text, .jsonl or .safetensors; default: what the model offers.",
        rich_help_panel=_DATA,
    ),
]
SamplesOption = Annotated[int, typer.Option(help="Samples at most.", rich_help_panel=_DATA)]
SeqLenOption = Annotated[int, typer.Option(help="Tokens of each at most.", rich_help_panel=_DATA)]
BatchSizeOption = Annotated[int, typer.Option(help="Samples per batch.", rich_help_panel=_DATA)]
FormatOption = Annotated[
    OutputFormat,
    typer.Option("--format", metavar="FORMAT", help="table, json, markdown or csv."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Same as --format json.")]
AttentionOption = Annotated[
    bool, typer.Option("--attention", help="Emit dpa slots for foreign attention too.")
]
RemoteCodeOption = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run Python code that a model directory brings."),
]


def chosen_format(output: OutputFormat, as_json: bool) -> OutputFormat:
    """The format that `--format` and `--json` together ask for."""
    return OutputFormat.JSON if as_json else output
