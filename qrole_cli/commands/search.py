"""`qrole search`: formats per layer under a budget, written as a rules file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qrole_cli import console
from qrole_cli.console import Column, OutputFormat, show
from qrole_cli.files import check_folder
from qrole_cli.options import (
    BatchSizeOption,
    DataOption,
    FactoriesOption,
    FormatOption,
    JsonOption,
    ModelArgument,
    RemoteCodeOption,
    SamplesOption,
    SeqLenOption,
    chosen_format,
)

if TYPE_CHECKING:
    from qrole.searching import Point, SearchResult

__all__ = ["register"]

_BUDGET = "Budget (exactly one)"
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command(rich_help_panel="Numbers")
    def search(
        model: ModelArgument,
        factory: FactoriesOption,
        output: Annotated[
            Path, typer.Option("--output", "-o", metavar="FILE", help="The rules file to write.")
        ] = Path("rules.toml"),
        bits: Annotated[
            float | None,
            typer.Option(min=1.0, help="Bits per quantized weight.", rich_help_panel=_BUDGET),
        ] = None,
        size: Annotated[
            str | None,
            typer.Option(
                metavar="BYTES",
                help="Of all parameters: 4GB, 900MiB.",
                rich_help_panel=_BUDGET,
            ),
        ] = None,
        kl: Annotated[
            float | None,
            typer.Option(min=0.0, help="KL to the reference, nats.", rich_help_panel=_BUDGET),
        ] = None,
        engine: Annotated[
            list[str] | None,
            typer.Option(metavar="E", help="Only what this engine loads; may be repeated."),
        ] = None,
        layout: Annotated[
            str, typer.Option(help="Layout of the checkpoint for the engines.")
        ] = "compressed-tensors",
        backward: Annotated[
            bool, typer.Option("--backward", help="Minimize the error of the gradients.")
        ] = False,
        data_free: Annotated[
            bool, typer.Option("--data-free", help="Judge by the weights alone; runs nothing.")
        ] = False,
        data: DataOption = None,
        samples: SamplesOption = 4,
        seq_len: SeqLenOption = 256,
        batch_size: BatchSizeOption = 4,
        seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
        plot: Annotated[
            Path | None, typer.Option(metavar="FILE", help="Write the front as an HTML plot.")
        ] = None,
        force: Annotated[bool, typer.Option("--force", help="Overwrite the rules file.")] = False,
        trust_remote_code: RemoteCodeOption = False,
        output_format: FormatOption = OutputFormat.TABLE,
        as_json: JsonOption = False,
    ) -> None:
        """Choose a format per layer so that the error is least within a budget.

        A stopped search goes on where it was: measurements are kept beside the output.

        Example: qrole search sample_models/llama_tiny.py -f nvfp4 -f mxfp8 --bits 5.5
        """
        from qrole.api import search as find

        nbytes = _parse_size(size) if size is not None else None
        _refuse_existing(output, force)
        if plot is not None:
            check_folder(plot)
        with console.progress("measuring", unit="runs") as report:
            result = find(
                model,
                factory,
                bits=bits,
                nbytes=nbytes,
                kl=kl,
                data_free=data_free,
                backward=backward,
                data=data,
                samples=samples,
                seq_len=seq_len,
                batch_size=batch_size,
                engines=engine or (),
                layout=layout,
                journal=output.with_name(output.name + ".journal"),
                seed=seed,
                trust_remote_code=trust_remote_code,
                on_progress=report,
            )
        _write(output, result.rules)
        if plot is not None:
            _write(plot, _plot(result))
        _say(result, output, chosen_format(output_format, as_json))


def _parse_size(text: str) -> int:
    from qrole.errors import UsageError

    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?|)B?", text.strip().upper())
    if match is None:
        raise UsageError(
            f"--size is {text!r}", expected="a size such as 4GB, 900MiB or 123456", hint="fix it"
        )
    return int(float(match[1]) * _UNITS[match[2]])


def _refuse_existing(output: Path, force: bool) -> None:
    from qrole.errors import OutputExistsError

    check_folder(output)
    if output.exists() and not force:
        raise OutputExistsError(
            f"{output} exists", expected="a new file", hint="name another with -o, or pass --force"
        )


def _write(path: Path, text: str) -> None:
    from qrole.errors import CheckpointError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror}",
            expected="a writable path with space left",
            hint="name another",
        ) from error


def _say(result: SearchResult, output: Path, chosen: OutputFormat) -> None:
    from dataclasses import asdict

    from qrole.rows import counted, point_row

    measured = result.found.measured is not None
    columns = (
        Column("choice"),
        Column("bits", right=True),
        Column("bytes", right=True, drop=3),
        Column(f"predicted {result.metric}", right=True, drop=1 if measured else 0),
        Column(f"measured {result.metric}", right=True, drop=0 if measured else 4),
        Column("layers", drop=2),
    )
    shown = [result.found, *result.baselines]
    rows = [point_row(point) for point in shown]
    if chosen is not OutputFormat.TABLE:
        rows += [point_row(point) for point in result.front]
    payload = {"schema": "qrole.search/1", **asdict(result)}
    show(columns, rows, payload, chosen)
    for reason, names in result.kept.items():
        console.note(f"kept in high precision, {reason}: {', '.join(names)}")
    for reason, count in result.left_out.items():
        console.note(f"left out for {counted(count, 'unit')}: {reason}")
    if result.reused:
        again = counted(result.reused, "measurement")
        console.note(f"{again} of a stopped search used again")
    console.finish(None, f"wrote {output}: {result.found.bits:.3f} bits per weight")


def _plot(result: SearchResult) -> str:
    """The front as one HTML page that needs no network."""
    from qrole.errors import MissingExtraError

    try:
        import plotly.graph_objects as charts
    except ModuleNotFoundError as error:
        raise MissingExtraError("plotly", "report", "the plot of the front") from error
    figure = charts.Figure()
    points: list[tuple[str, list[Point], dict[str, Any]]] = [
        ("front (predicted)", list(result.front), {"mode": "lines"}),
        ("found", [result.found], {"mode": "markers", "marker": {"size": 12}}),
        ("baselines", list(result.baselines), {"mode": "markers"}),
    ]
    for name, some, look in points:
        errors = [p.measured.error if p.measured is not None else p.predicted for p in some]
        figure.add_scatter(
            x=[p.bits for p in some], y=errors, name=name, text=[p.name for p in some], **look
        )
    figure.update_layout(
        title=result.model, xaxis_title="bits per weight", yaxis_title=result.metric
    )
    figure.update_yaxes(type="log")
    return str(figure.to_html(include_plotlyjs=True, full_html=True))
