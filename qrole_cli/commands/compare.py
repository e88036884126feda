"""`qrole compare`: what plans do to a model's numbers, and the gate for CI."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qrole_cli.commands.report import open_page
from qrole_cli.console import Column, OutputFormat, err, finish, note, progress, show, warn
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
    complete_factory,
)

if TYPE_CHECKING:
    from qrole.comparing import Gate, Report, Violation
    from qrole.comparing.report import CandidateReport, SensitivityReport

__all__ = ["register"]

_WHAT_IF, _TRAINING, _GATE = "What if", "Training", "Gate"


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command(rich_help_panel="Numbers")
    def compare(
        model: ModelArgument,
        factory: FactoriesOption,
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
        backward: Annotated[
            bool, typer.Option("--backward/--forward-only", help="Measure gradients too.")
        ] = True,
        dtype: Annotated[
            str | None, typer.Option(metavar="D", help="Cast the parameters: float32, bfloat16.")
        ] = None,
        attention: Annotated[
            bool, typer.Option("--attention", help="Compute attention by its dpa slots too.")
        ] = False,
        seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
        data: DataOption = None,
        samples: SamplesOption = 16,
        seq_len: SeqLenOption = 256,
        batch_size: BatchSizeOption = 4,
        only: Annotated[
            list[str] | None,
            typer.Option(
                metavar="GLOB",
                help="Quantize only modules whose path matches; may be repeated.",
                rich_help_panel=_WHAT_IF,
            ),
        ] = None,
        one_at_a_time: Annotated[
            str | None,
            typer.Option(
                metavar="role|module|gemm",
                help="Also quantize each such group alone, and sort by the error.",
                rich_help_panel=_WHAT_IF,
            ),
        ] = None,
        steps: Annotated[
            int,
            typer.Option(min=0, help="Also train that many steps.", rich_help_panel=_TRAINING),
        ] = 0,
        budgets: Annotated[
            Path | None,
            typer.Option(
                help="TOML file of limits; a broken one is exit 1.", rich_help_panel=_GATE
            ),
        ] = None,
        baseline: Annotated[
            Path | None,
            typer.Option(help="Saved report; a grown error is exit 1.", rich_help_panel=_GATE),
        ] = None,
        tolerance: Annotated[
            float,
            typer.Option(
                min=0.0, help="Growth of an error that is let pass.", rich_help_panel=_GATE
            ),
        ] = 0.05,
        repeats: Annotated[
            int,
            typer.Option(
                min=1,
                help="Seeds to run, for the noise floor of --baseline; 5 are good.",
                rich_help_panel=_GATE,
            ),
        ] = 1,
        max_failures: Annotated[
            int,
            typer.Option(min=1, help="Failures to show, worst first.", rich_help_panel=_GATE),
        ] = 20,
        save: Annotated[
            Path | None,
            typer.Option(help="Write the JSON report there too.", rich_help_panel=_GATE),
        ] = None,
        junit: Annotated[
            Path | None, typer.Option(help="Write JUnit XML there.", rich_help_panel=_GATE)
        ] = None,
        github: Annotated[
            bool | None,
            typer.Option(
                "--github/--no-github",
                help="Annotations and step summary; default: inside GitHub Actions.",
                rich_help_panel=_GATE,
            ),
        ] = None,
        html: Annotated[
            Path | None, typer.Option(metavar="FILE", help="Write the report as an HTML page.")
        ] = None,
        show_page: Annotated[
            bool, typer.Option("--open", help="Open the HTML page in the browser.")
        ] = False,
        trust_remote_code: RemoteCodeOption = False,
        output: FormatOption = OutputFormat.TABLE,
        as_json: JsonOption = False,
    ) -> None:
        """Measure what a factory's plan does to a model's numbers, forward and backward.

        Example: qrole compare sample_models/llama_tiny.py -f mxfp8 -f nvfp4
        """
        from qrole.api import compare as measure
        from qrole.api import judge
        from qrole.comparing import load_baseline, load_budgets
        from qrole.reporting import check_libraries

        for path in (save, junit, html):
            if path is not None:
                check_folder(path)
        if html is not None or show_page:
            check_libraries()
        limits = load_budgets(budgets) if budgets is not None else ()
        before = load_baseline(baseline) if baseline is not None else None
        with progress("comparing", unit="runs") as bar:
            report = measure(
                model,
                factory,
                reference=reference,
                only=only or (),
                one_at_a_time=one_at_a_time,
                steps=steps,
                data=data,
                samples=samples,
                seq_len=seq_len,
                batch_size=batch_size,
                backward=backward,
                dtype=dtype,
                seed=seed,
                repeats=repeats,
                attention=attention,
                trust_remote_code=trust_remote_code,
                on_progress=bar.update,
            )
        gate = judge(report, budgets=limits, baseline=before, tolerance=tolerance)
        _show(report, gate, chosen_format(output, as_json))
        _write(gate, save, junit)
        _write_page(gate, html, show_page)
        if github or (github is None and os.environ.get("GITHUB_ACTIONS") == "true"):
            _tell_github(gate, max_failures)
        _say(report, gate.violations[:max_failures], len(gate.violations) - max_failures)
        if before is not None:
            _say_noise(report, before)
        finish(gate.passed, _outcome(report, gate))
        if gate.violations:
            raise typer.Exit(1)


def _show(report: Report, gate: Gate, chosen: OutputFormat) -> None:
    payload = gate.to_json()
    if chosen is OutputFormat.JSON or len(report.candidates) > 1:
        from qrole.rows import model_row

        rows = [model_row(candidate) for candidate in report.candidates]
        show(_MODEL_COLUMNS, rows, payload, chosen, title=_title(report))
    else:
        _show_layers(report.candidates[0], payload, chosen, _title(report))
    if chosen is OutputFormat.JSON:
        return
    for factory, groups in report.sensitivity.items():
        _show_sensitivity(factory, groups, chosen)
    if report.training:
        _show_training(report, chosen)


def _write_page(gate: Gate, html: Path | None, show_page: bool) -> None:
    """The HTML page, where one is asked for; one to look at only goes to a temporary folder."""
    if html is None and not show_page:
        return
    from qrole.reporting import build_view, write_page

    page = html or Path(tempfile.mkdtemp(prefix="qrole-")) / "compare.html"
    write_page(build_view([("compare", gate.to_json())]), page)
    if show_page:
        open_page(page)


def _title(report: Report) -> str:
    from qrole.rows import counted

    samples = counted(report.data["samples"], "sample")
    return f"{report.model} against {report.reference}, {samples}"


_SHOWN = 20
_LAYER_COLUMNS = (
    Column("layer", path=True),
    Column("input x weight", drop=3),
    Column("fprop dB", right=True),
    Column("dgrad dB", right=True, drop=1),
    Column("wgrad dB", right=True, drop=2),
    Column("output dB", right=True),
    Column("cosine", right=True),
)
_MODEL_COLUMNS = (
    Column("factory"),
    Column("output dB", right=True),
    Column("cosine", right=True, drop=1),
    Column("KL", right=True),
    Column("top-1", right=True),
    Column("loss diff", right=True),
    Column("grad cosine", right=True),
)
_SENSITIVITY_COLUMNS = (
    Column("alone", path=True),
    Column("KL", right=True),
    Column("output err", right=True),
    Column("grad err", right=True),
    Column(""),
)
_TRAINING_COLUMNS = (
    Column("training"),
    Column("first loss", right=True),
    Column("last loss", right=True),
    Column("difference", right=True),
    Column("grad norm", right=True),
    Column("diverges", right=True),
)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _show_layers(
    candidate: CandidateReport, payload: dict[str, object], chosen: OutputFormat, title: str
) -> None:
    from qrole.rows import counted, layer_rows, model_row

    rows = layer_rows(candidate)
    shown = rows[:_SHOWN] if chosen is OutputFormat.TABLE else rows
    show(_LAYER_COLUMNS, shown, payload, chosen, title=title)
    if len(shown) < len(rows):
        more = counted(len(rows) - len(shown), "more layer")
        note(f"{more}, all better; --format csv or --json shows them")
    if chosen is OutputFormat.TABLE:
        show(_MODEL_COLUMNS, [model_row(candidate)], payload, chosen)


def _show_sensitivity(
    factory: str, groups: tuple[SensitivityReport, ...], chosen: OutputFormat
) -> None:
    by_output = any(group.order[0] for group in groups)
    sizes = [group.order[0 if by_output else 1] for group in groups]
    rows = [
        [
            group.group,
            _number(group.kl, ".5f"),
            _number(group.rel_err, ".4f"),
            _number(group.grad_rel_err, ".4f"),
            "█" * round(16 * size / max(sizes)) if max(sizes) else "",
        ]
        for group, size in zip(groups, sizes, strict=True)
    ]
    shown = rows[:_SHOWN] if chosen is OutputFormat.TABLE else rows
    show(_SENSITIVITY_COLUMNS, shown, {}, chosen, title=f"{factory}: one group at a time")


def _show_training(report: Report, chosen: OutputFormat) -> None:
    rows = [
        [
            run.name,
            _number(run.losses[0], ".5f"),
            _number(run.losses[-1], ".5f"),
            _number(run.final_loss_diff, "+.5f"),
            _number(run.grad_norm_ratio, ".3f"),
            "never" if run.divergence_step is None else f"step {run.divergence_step}",
        ]
        for run in report.training
    ]
    show(_TRAINING_COLUMNS, rows, {}, chosen)


def _write(gate: Gate, save: Path | None, junit: Path | None) -> None:
    from qrole.comparing import write_text

    if save is not None:
        text = json.dumps(gate.report.to_json(), indent=1, sort_keys=True, allow_nan=False)
        write_text(save, text + "\n")
    if junit is not None:
        write_text(junit, gate.junit())


def _tell_github(gate: Gate, most: int) -> None:
    from qrole.comparing import write_text

    for line in gate.annotations(most):
        sys.stderr.write(line + "\n")
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        write_text(Path(summary), gate.summary(most), append=True)


def _say(report: Report, violations: tuple[Violation, ...], more: int) -> None:
    gemms = [gemm for candidate in report.candidates for gemm in candidate.gemms]
    estimated = sum(gemm.coverage < 1.0 for gemm in gemms)
    if estimated:
        note(
            f"dB of {estimated} of {len(gemms)} GEMMs are estimates, from the rows that deviate "
            "most and random projections of the rest; all else is measured whole"
        )
    for candidate in report.candidates:
        for layer, readers in candidate.not_computed.items():
            how = f"; seen instead: {', '.join(readers)}" if readers else ""
            warn(f"{candidate.factory}: {layer} did not run with quantized operands{how}")
        for layer, idle in candidate.idle_experts.items():
            numbers = ", ".join(map(str, idle))
            note(f"{candidate.factory}: experts of {layer} that saw no token: {numbers}")
    for violation in violations:
        err.print(f"  {violation}", soft_wrap=True, markup=False)
    if more > 0:
        err.print(f"  and {more} more", soft_wrap=True)


def _say_noise(report: Report, baseline: dict[str, Any]) -> None:
    from qrole.comparing import noise_floor

    floor = noise_floor(report, baseline)
    if floor is not None:
        seeds = max(report.repeats, baseline.get("repeats", 1))
        note(
            f"errors that vary with the seed may grow by {floor:.0%} (median) after {seeds} seeds; "
            "more --repeats narrow it"
        )


def _outcome(report: Report, gate: Gate) -> str:
    from qrole.rows import counted

    what = f"{counted(report.data['samples'], 'sample')} of {report.data['source']}"
    if gate.violations:
        return f"{counted(len(gate.violations), 'limit')} broken on {what}"
    if gate.judged:
        return f"{counted(len(gate.judged), 'limit')} kept on {what}"
    return f"{what}; no --budgets and no --baseline, so nothing was judged"
