"""A plan in files: written, and verified."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from qrole.given import as_factory, as_source, choice, data_file, with_batches
from qrole.loading import load_model

if TYPE_CHECKING:
    import torch

    from qrole.checkpoint.apply import ApplyReport
    from qrole.checkpoint.verification.report import VerifyReport
    from qrole.given import FactoryLike, InputData, Model

    Progress = Callable[[int, int], None]

__all__ = ["apply", "verify"]


def apply(
    model: Model,
    factory: FactoryLike,
    output: str | os.PathLike[str],
    *,
    layout: str = "compressed-tensors",
    fp8: str = "static",
    weight_only: bool = False,
    on_shape: str = "fail",
    quantize_head: bool = False,
    fuse: Iterable[str | Iterable[str]] = (),
    engines: Iterable[str] = (),
    dtype: str | torch.dtype | None = None,
    data: InputData | None = None,
    samples: int = 64,
    seq_len: int = 512,
    batch_size: int = 4,
    calibration: str | Iterable[str] = (),
    dead_experts: str = "sibling",
    workers: int = 0,
    fsync: bool = False,
    force: bool = False,
    trust_remote_code: bool = False,
    on_progress: Progress | None = None,
    on_calibration: Progress | None = None,
) -> ApplyReport:
    """Quantizes a model's weights by a factory's plan and writes a checkpoint.

    A directory is streamed from its files; a module is written as its `state_dict` names it.

    Args:
        model: The model, with weights. One of transformers is given by its directory, whose config
            and tokenizer engines need.
        factory: The factory.
        output: The directory to write; must not exist.
        layout: `compressed-tensors`, `modelopt` or `fp8-block`.
        fp8: How FP8 per-tensor scaling is stored: `static` (calibrated inputs), `dynamic` (inputs
            scaled per token) or `channel` (that, and weights scaled per row).
        weight_only: Leave activations in high precision; needs no calibration.
        on_shape: `fail` or `fallback` (to high precision) for weights that their format cannot
            take.
        quantize_head: Quantize the output head as the plan says.
        fuse: Sibling layers that an engine joins, by last name: `"q,k"` or `("q", "k")`.
        engines: `vllm`, `sglang`, `trtllm`, `transformers`: refuse what one of them cannot load.
        dtype: What the written config names as the model's dtype, which readers cast to; None
            leaves the source's.
        data: Calibration data; None takes what the model's source offers.
        samples: As for `compare`.
        seq_len: As for `compare`.
        batch_size: As for `compare`.
        calibration: `max`, `mse` or `percentile:99.9`, for all layers or those of a glob
            (`*.down_proj=mse`); later ones win.
        dead_experts: `sibling`, `weight` or `fail`: input range of experts that saw no token.
        workers: Threads; 0 for as many as the kernels use. The bytes do not depend on it.
        fsync: Wait until the disk has everything.
        force: Replace an existing directory.
        trust_remote_code: Run code that a model directory brings.
        on_progress: Told of source bytes done and in total.
        on_calibration: Told of calibration batches done and in total.

    Raises:
        OutputExistsError: The output exists, or another run is writing it.
        UsageError, ConfigError: The plan cannot be stored as asked; nothing was written.
        CheckpointError: The source is corrupt or has changed, or the output cannot be written.
        InterruptedRunError: Stopped by the user; the same call goes on where it stopped.
    """
    from qrole.calibrate import DeadExperts, parse_rule
    from qrole.checkpoint.apply import apply as write
    from qrole.checkpoint.constraints import OnShape
    from qrole.checkpoint.fused import DEFAULT_FUSIONS, parse_fusion
    from qrole.checkpoint.inputs import CalibrationOptions
    from qrole.checkpoint.job import ApplyOptions
    from qrole.checkpoint.schemes import Fp8Mode

    chosen = as_factory(factory)
    names = [text if isinstance(text, str) else ",".join(text) for text in fuse]
    options = ApplyOptions(
        layout=layout,
        fp8=choice(Fp8Mode, fp8, "fp8"),
        weight_only=weight_only,
        on_shape=choice(OnShape, on_shape, "on_shape"),
        quantize_head=quantize_head,
        fusions=(*map(parse_fusion, names), *DEFAULT_FUSIONS),
        engines=tuple(engines),
        dtype=str(dtype).removeprefix("torch.") if dtype is not None else "",
    )
    rules = [calibration] if isinstance(calibration, str) else calibration
    how = CalibrationOptions(
        data_file(data),
        samples,
        seq_len,
        batch_size,
        tuple(map(parse_rule, rules)),
        choice(DeadExperts, dead_experts, "dead_experts"),
        trust_remote_code,
    )
    given = as_source(model)
    if data is not None and data_file(data) is None:
        if isinstance(given, str):
            given = load_model(given, weights=True, trust_remote_code=trust_remote_code)
        given = with_batches(given, data)
    return write(
        given,
        chosen,
        Path(output),
        options=options,
        force=force,
        calibration=how,
        workers=workers,
        fsync=fsync,
        on_progress=on_progress,
        on_calibration=on_calibration,
    )


def verify(
    directory: str | os.PathLike[str],
    source: Model | None = None,
    *,
    on_progress: Progress | None = None,
) -> VerifyReport:
    """Checks a written checkpoint against its declaration, and against its source.

    Args:
        directory: What `apply`, or another tool, has written.
        source: The model it was made from, to compare values with; None checks the checkpoint by
            itself.
        on_progress: Told of bytes compared and in total.

    Raises:
        CheckpointError: Files are missing, truncated or malformed.
        UsageError: The layout is not one that is known.
        NothingMatchedError: Nothing in it is quantized.
    """
    from qrole.checkpoint.verify import verify as check

    origin = as_source(source) if source is not None else None
    return check(Path(directory), origin, on_progress=on_progress)
