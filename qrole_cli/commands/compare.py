"""`qrole compare`: what plans do to a model's numbers, and the gate for CI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qrole_cli.console import Column, OutputFormat, finish, note, progress, show, warn
from qrole_cli.options import (
    FormatOption,
    JsonOption,
    ModelArgument,
    RemoteCodeOption,
    chosen_format,
    complete_factory,
)

if TYPE_CHECKING:
    from qrole.compare.budgets import Violation
    from qrole.compare.report import CandidateReport, Report

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command(rich_help_panel="Numbers")
    def compare(
        model: ModelArgument,
        factory: Annotated[
            list[str],
            typer.Option(
                "--factory",
                "-f",
                metavar="F",
                help="A candidate; may be given several times.",
                autocompletion=complete_factory,
                show_default=False,
            ),
        ],
        reference: Annotated[
            str | None,
            typer.Option(
                "--reference",
                "-r",
                metavar="F",
                help="Factory to compare with; default: high precision.",
                autocompletion=complete_factory,
            ),
        ] = None,
        data: Annotated[
            Path | None,
            typer.Option(help="Text, .jsonl or .safetensors; default: what the model offers."),
        ] = None,
        samples: Annotated[int, typer.Option(help="Samples at most.")] = 16,
        seq_len: Annotated[int, typer.Option(help="Tokens per sample at most.")] = 256,
        batch_size: Annotated[int, typer.Option(help="Samples per batch.")] = 4,
        seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
        backward: Annotated[
            bool, typer.Option("--backward/--forward-only", help="Measure gradients too.")
        ] = True,
        budgets: Annotated[
            Path | None, typer.Option(help="TOML file of limits; exit code 1 where one is broken.")
        ] = None,
        max_failures: Annotated[
            int, typer.Option(min=1, help="Broken limits to show, worst first.")
        ] = 20,
        trust_remote_code: RemoteCodeOption = False,
        output: FormatOption = OutputFormat.TABLE,
        as_json: JsonOption = False,
    ) -> None:
        """Measure what a factory's plan does to a model's numbers, forward and backward.

        Example: qrole compare sample_models/llama_tiny.py -f mxfp8 -f nvfp4
        """
        from qrole.compare import DataOptions, check_budgets, load_budgets
        from qrole.compare import compare as measure

        limits = load_budgets(budgets) if budgets is not None else ()
        with progress("comparing", unit="runs") as bar:
            report = measure(
                model,
                factory,
                reference=reference,
                data=DataOptions(data, samples, seq_len, batch_size),
                backward=backward,
                seed=seed,
                trust_remote_code=trust_remote_code,
                on_progress=bar.update,
            )
        violations = check_budgets(report, limits)
        chosen = chosen_format(output, as_json)
        _show(report, violations, chosen)
        _say(report, violations[:max_failures])
        finish(not violations, _outcome(report, limits, violations))
        if violations:
            raise typer.Exit(1)


def _show(report: Report, violations: list[Violation], chosen: OutputFormat) -> None:
    from qrole.compare.gate import gate_json

    payload = {**report.to_json(), "gate": gate_json(violations)}
    if len(report.candidates) == 1:
        candidate = report.candidates[0]
        rows = _layer_rows(candidate)
        shown = rows if chosen is not OutputFormat.TABLE else rows[:_SHOWN]
        show(_LAYER_COLUMNS, shown, payload, chosen, title=f"{candidate.factory}: worst layers")
        if len(shown) < len(rows):
            note(f"{len(rows) - len(shown)} more layers; --format csv or --json shows all")
    else:
        show(_MODEL_COLUMNS, [_model_row(c) for c in report.candidates], payload, chosen)


_SHOWN = 20
_LAYER_COLUMNS = (
    Column("layer", path=True),
    Column("input x weight"),
    Column("fprop dB", right=True),
    Column("dgrad dB", right=True, drop=1),
    Column("wgrad dB", right=True, drop=1),
    Column("output dB", right=True),
    Column("cosine", right=True),
)
_MODEL_COLUMNS = (
    Column("factory"),
    Column("output dB", right=True),
    Column("cosine", right=True),
    Column("KL", right=True),
    Column("top-1", right=True),
    Column("loss diff", right=True),
    Column("grad cosine", right=True),
)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _layer_rows(candidate: CandidateReport) -> list[list[str]]:
    gemms = {(g.module, g.group, g.gemm): g.sqnr_db for g in candidate.gemms}
    rows = []
    for layer in sorted(candidate.layers, key=lambda x: (x.cosine is None, x.cosine or 0.0)):
        products = [gemms.get((layer.module, layer.group, g)) for g in ("fprop", "dgrad", "wgrad")]
        rows.append(
            [
                layer.layer,
                layer.formats,
                *(_number(value, ".1f") for value in products),
                _number(layer.sqnr_db, ".1f"),
                _number(layer.cosine, ".5f"),
            ]
        )
    return rows


def _model_row(candidate: CandidateReport) -> list[str]:
    found = candidate.model
    return [
        candidate.factory,
        _number(found.sqnr_db, ".1f"),
        _number(found.cosine, ".5f"),
        _number(found.kl, ".5f"),
        _number(found.top1_agreement, ".1%"),
        _number(found.loss_diff, "+.5f"),
        _number(found.grad_cosine, ".5f"),
    ]


def _say(report: Report, violations: list[Violation]) -> None:
    for candidate in report.candidates:
        for layer, readers in candidate.not_computed.items():
            how = f", its weight was read by {', '.join(readers)}" if readers else ""
            warn(f"{candidate.factory}: {layer} was not computed with quantized operands{how}")
        for layer, idle in candidate.idle_experts.items():
            note(f"{candidate.factory}: {len(idle)} experts of {layer} saw no token")
    for found in violations:
        warn(f"{found.candidate}: {found.where}: {found.metric} = {found.value:.5g}, {found.limit}")


def _outcome(report: Report, limits: tuple[Any, ...], violations: list[Violation]) -> str:
    data = report.data
    what = f"{data['samples']} samples of {data['source']}"
    if violations:
        return f"{len(violations)} limits broken on {what}"
    kept = f"{len(limits)} budgets kept" if limits else "no budgets given, nothing was judged"
    return f"{what}, {kept}"
