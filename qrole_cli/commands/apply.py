"""`qrole apply`: quantize a model's weights by a plan and write a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qrole.calibrate import DeadExperts
from qrole.checkpoint.constraints import OnShape
from qrole.checkpoint.schemes import Fp8Mode
from qrole.errors import UsageError
from qrole_cli import console
from qrole_cli.console import Column, OutputFormat, finish, note, progress, show
from qrole_cli.options import (
    FactoryOption,
    FormatOption,
    JsonOption,
    ModelArgument,
    RemoteCodeOption,
    chosen_format,
)
from qrole_cli.verdicts import say_verdicts, size

if TYPE_CHECKING:
    from qrole.checkpoint.apply import ApplyReport
    from qrole.checkpoint.bill import Bill
    from qrole.checkpoint.inputs import CalibrationOptions
    from qrole.checkpoint.job import ApplyOptions

__all__ = ["register"]

_BILL_COLUMNS = (
    Column("format"),
    Column("tensors", right=True),
    Column("elements", right=True),
    Column("source", right=True),
    Column("output", right=True),
    Column("bits", right=True),
)


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command(rich_help_panel="Checkpoints")
    def apply(
        model: ModelArgument,
        factory: FactoryOption,
        output: Annotated[
            Path | None,
            typer.Option("--output", "-o", metavar="DIR", help="Where the checkpoint goes."),
        ] = None,
        layout: Annotated[
            str,
            typer.Option(
                help="compressed-tensors, modelopt or fp8-block; or native: what the plan's "
                "quantizers make, lossless, quantized with torch, for no engine."
            ),
        ] = "compressed-tensors",
        engine: Annotated[
            list[str] | None,
            typer.Option(help="vllm, sglang, trtllm or transformers; refuse what it cannot load."),
        ] = None,
        weight_only: Annotated[
            bool, typer.Option("--weight-only", help="Leave activations in high precision.")
        ] = False,
        fp8: Annotated[
            Fp8Mode,
            typer.Option(help="FP8 per tensor: calibrated inputs, inputs per token, or channels."),
        ] = Fp8Mode.STATIC,
        on_shape: Annotated[
            OnShape, typer.Option(help="Weights whose shape their format cannot take.")
        ] = OnShape.FAIL,
        quantize_head: Annotated[
            bool, typer.Option("--quantize-head", help="Do to the output head as the plan says.")
        ] = False,
        fuse: Annotated[
            list[str] | None,
            typer.Option(metavar="A,B,..", help="Sibling layers that an engine joins, by name."),
        ] = None,
        dtype: Annotated[
            str, typer.Option(help="bfloat16, ..: what the config names as the model's dtype.")
        ] = "",
        data: Annotated[
            Path | None,
            typer.Option(help="Calibration text, .jsonl or .safetensors; default: the model's."),
        ] = None,
        samples: Annotated[int, typer.Option(help="Calibration samples at most.")] = 64,
        seq_len: Annotated[int, typer.Option(help="Tokens per sample at most.")] = 512,
        batch_size: Annotated[int, typer.Option(help="Samples per batch.")] = 4,
        calibration: Annotated[
            list[str] | None,
            typer.Option(
                metavar="[PATTERN=]METHOD",
                help="max (default), mse, percentile[:99.99]; for all layers or those named.",
            ),
        ] = None,
        dead_experts: Annotated[
            DeadExperts, typer.Option(help="Input range of experts that saw no token.")
        ] = DeadExperts.SIBLING,
        workers: Annotated[
            int, typer.Option(min=0, help="Threads; the bytes do not depend on it.")
        ] = 0,
        fsync: Annotated[
            bool, typer.Option("--fsync", help="Wait until the disk has everything.")
        ] = False,
        force: Annotated[bool, typer.Option("--force", help="Replace the output.")] = False,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Print what it would cost, write nothing.")
        ] = False,
        trust_remote_code: RemoteCodeOption = False,
        output_format: FormatOption = OutputFormat.TABLE,
        as_json: JsonOption = False,
    ) -> None:
        """Quantize a model's weights by a factory's plan and write them to safetensors.

        Example: qrole apply path/to/model -f nvfp4 -o model-nvfp4
        """
        from qrole.calibrate import parse_rule
        from qrole.checkpoint.fused import DEFAULT_FUSIONS, parse_fusion
        from qrole.checkpoint.inputs import CalibrationOptions
        from qrole.checkpoint.job import ApplyOptions

        options = ApplyOptions(
            layout=layout,
            fp8=fp8,
            weight_only=weight_only,
            on_shape=on_shape,
            quantize_head=quantize_head,
            fusions=(*map(parse_fusion, fuse or ()), *DEFAULT_FUSIONS),
            engines=tuple(engine or ()),
            dtype=dtype,
        )
        chosen = chosen_format(output_format, as_json)
        if dry_run:
            from qrole.checkpoint.bill import dry_run as bill_of

            found = bill_of(model, factory, options, workers)
            _show_bill(found, f"at most {samples} samples, text cut to {seq_len} tokens", chosen)
            return
        if os.environ.get("RANK", "0") != "0":
            console.settings.quiet = True  # the first of torchrun's processes speaks for all
        rules = tuple(parse_rule(text) for text in calibration or ())
        how = CalibrationOptions(
            data, samples, seq_len, batch_size, rules, dead_experts, trust_remote_code
        )
        report = _write(model, factory, output, options, how, force, workers, fsync)
        if chosen is OutputFormat.JSON:
            show((), (), report.to_json(), chosen)
        _say(report)
        finish(True, _outcome(report))


def _write(
    model: str,
    factory: str,
    output: Path | None,
    options: ApplyOptions,
    calibration: CalibrationOptions,
    force: bool,
    workers: int,
    fsync: bool,
) -> ApplyReport:
    from qrole.checkpoint.apply import apply as write

    if output is None:
        raise UsageError(
            "no output was given",
            expected="-o DIR, or --dry-run",
            hint="name a directory that does not exist yet",
        )
    with (
        progress("calibrating", unit="batches") as seen,
        progress("quantizing", unit="bytes") as bar,
    ):
        return write(
            model,
            factory,
            output,
            options=options,
            force=force,
            calibration=calibration,
            workers=workers,
            fsync=fsync,
            on_progress=bar.update,
            on_calibration=seen.update,
        )


def _say(report: ApplyReport) -> None:
    if report.dropped_remains:
        note("the unfinished output of another job was in the way and was removed")
    if report.reused_bytes:
        note(f"reused {size(report.reused_bytes)} that an earlier run had done")
    for text in report.notes:
        note(text)
    say_verdicts(report.verdicts)


def _outcome(report: ApplyReport) -> str:
    schemes = ", ".join(f"{count} layers {name}" for name, count in report.schemes.items())
    sizes = f"{size(report.source_bytes)} to {size(report.output_bytes)}"
    return f"{report.output}: {schemes}; {sizes}"


def _show_bill(bill: Bill, data: str, chosen: OutputFormat) -> None:
    rows = [
        [
            line.name,
            str(line.tensors),
            f"{line.numel:,}",
            size(line.source_bytes),
            size(line.output_bytes),
            f"{8 * line.output_bytes / max(line.numel, 1):.2f}",
        ]
        for line in bill.lines
    ]
    show(_BILL_COLUMNS, rows, bill.to_json(), chosen, title="what it would write")
    for text in bill.notes:
        note(text)
    if bill.calibrated:
        held = size(sum(line.source_bytes for line in bill.lines))
        note(
            f"{bill.calibrated} layers get calibrated input scales: first the model is loaded "
            f"({held} as stored) and run on {data}, which no estimate here includes"
        )
    say_verdicts(bill.verdicts)
    finish(
        True,
        f"{size(bill.output_bytes)}, {bill.quantized_bits:.2f} bits per quantized weight, "
        f"{bill.bits:.2f} overall; {_cost(bill)}; nothing was written",
    )


def _cost(bill: Bill) -> str:
    """Memory and time, with what they rest on and leave out."""
    time = f"about {bill.seconds:.1f} s" if bill.seconds >= 0.1 else "less than 0.1 s"
    threads = "1 thread" if bill.workers == 1 else f"{bill.workers} threads"
    aside = "calibration and disk aside" if bill.calibrated else "the disk aside"
    return (
        f"about {size(bill.memory_bytes)} of memory, and {time} to quantize with {threads} at the "
        f"rate measured now, {aside}"
    )
