"""One function per command, for programs: what `import qrole` offers.

What a model, a factory and input data can be, everywhere the same, is in `qrole.given`.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrole.emitters import EmitOptions, walk
from qrole.given import (
    as_factory,
    as_loaded,
    as_source,
    checkpoint_directory,
    choice,
    data_file,
    factories_of,
    runnable,
    with_batches,
)
from qrole.loading import load_model
from qrole.plans import Inventory, Plan, build_plan

if TYPE_CHECKING:
    import torch

    from qrole.auditing import AuditReport
    from qrole.checkpoint.apply import ApplyReport
    from qrole.checkpoint.verification.report import VerifyReport
    from qrole.comparing import Budget, Gate, Report
    from qrole.given import FactoryLike, InputData, Model
    from qrole.searching import SearchResult

    Progress = Callable[[int, int], None]
    NamedProgress = Callable[[int, int, str], None]

__all__ = [
    "apply",
    "as_factory",
    "audit",
    "compare",
    "inspect",
    "judge",
    "plan",
    "search",
    "verify",
]


def inspect(model: Model, *, attention: bool = False, trust_remote_code: bool = False) -> Inventory:
    """The slots of a model with their roles, and every parameter that has none.

    Args:
        model: The model; its weights are not read, and may be on the meta device.
        attention: Emit `dpa` slots for attention modules of foreign models too.
        trust_remote_code: Run code that a model directory brings.

    Raises:
        QroleError: The model cannot be loaded; see `qrole.errors`.
    """
    loaded = as_loaded(model, weights=False, trust_remote_code=trust_remote_code)
    return walk(loaded, EmitOptions(attention=attention))


def plan(
    model: Model | Inventory,
    factory: FactoryLike,
    *,
    attention: bool = False,
    trust_remote_code: bool = False,
) -> Plan:
    """Every slot of a model with the quantizer that a factory gives it.

    The factory is called once per slot, experts one by one, and never asked again.

    Args:
        model: As for `inspect`, or an inventory that it returned.
        factory: The factory.
        attention: As for `inspect`.
        trust_remote_code: As for `inspect`.

    Raises:
        FactoryError: The factory raised, returned None, or returned no quantizer.
        NothingMatchedError: The model has no slot.
    """
    chosen = as_factory(factory)
    if not isinstance(model, Inventory):
        model = inspect(model, attention=attention, trust_remote_code=trust_remote_code)
    return build_plan(model, chosen)


def audit(
    model: Model,
    factory: FactoryLike | None = None,
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    target: str | None = None,
    engines: Iterable[str] = (),
    tensor_parallel: int | None = None,
    fp8_dpa: bool = False,
    sequence_length: int | None = None,
    inference: bool = False,
    weights: bool = False,
    settings: str | os.PathLike[str] | None = None,
    attention: bool = False,
    trust_remote_code: bool = False,
) -> AuditReport:
    """What is wrong with the plan that a factory makes, or with a checkpoint that is written.

    Args:
        model: The model; without a factory, the directory of a written checkpoint.
        factory: The factory; None audits what the checkpoint declares.
        select: Codes or prefixes of codes (`QR3`) to look for; none given means all.
        ignore: Codes or prefixes to leave out.
        target: `sm_NN` of the GPU to run on; None checks no hardware.
        engines: `vllm`, `sglang`, `tensorrt-llm`, `transformers`: what must load the result.
        tensor_parallel: Number of GPUs that share every layer; None is 1.
        fp8_dpa: Attention runs in FP8.
        sequence_length: Tokens of a sequence; None leaves it unchecked.
        inference: Only the forward pass matters.
        weights: Read stored weights for NaN, infinity and zeros.
        settings: Folder from which on a pyproject.toml with `[tool.qrole]` is looked for; what is
            given here wins. None reads none.
        attention: As for `inspect`.
        trust_remote_code: As for `inspect`.

    Raises:
        UsageError: A code, engine, target or setting that does not exist.
        NothingMatchedError: The model has no slot.
        CheckpointError: A file is missing or malformed.
    """
    from qrole.auditing import AuditOptions, audit_checkpoint, audit_model, load_settings
    from qrole.auditing.settings import parse_engine

    base = AuditOptions() if settings is None else load_settings(Path(settings))
    options = replace(
        base,
        select=tuple(select) or base.select,
        ignore=(*base.ignore, *ignore),
        target=target or base.target,
        engines=tuple(map(parse_engine, engines)) or base.engines,
        tensor_parallel=tensor_parallel or base.tensor_parallel,
        fp8_dpa=fp8_dpa or base.fp8_dpa,
        sequence_length=sequence_length or base.sequence_length,
        inference=inference or base.inference,
        weights=weights or base.weights,
    )
    if factory is None:
        return audit_checkpoint(checkpoint_directory(model), options)
    chosen = as_factory(factory)
    loaded = as_loaded(model, weights=False, trust_remote_code=trust_remote_code)
    return audit_model(loaded, chosen, options, attention=attention)


def compare(
    model: Model,
    factories: FactoryLike | Sequence[FactoryLike],
    *,
    reference: FactoryLike | None = None,
    only: Sequence[str] = (),
    one_at_a_time: str | None = None,
    steps: int = 0,
    data: InputData | None = None,
    samples: int = 16,
    seq_len: int = 256,
    batch_size: int = 4,
    loss: Callable[[Any, Any], Any] | None = None,
    optimizer: Callable[[Any], Any] | None = None,
    backward: bool = True,
    dtype: str | torch.dtype | None = None,
    seed: int = 0,
    repeats: int = 1,
    attention: bool = False,
    trust_remote_code: bool = False,
    on_progress: NamedProgress | None = None,
) -> Report:
    """Measures what plans do to a model's numbers, forward and backward.

    A module that is given keeps its parameters, gradients and mode.

    Args:
        model: The model, with weights.
        factories: One or more candidates, each run against the same reference run.
        reference: Factory of the reference plan; None is high precision.
        only: Globs over module paths and role names; all else stays in high precision.
        one_at_a_time: `role`, `module` or `gemm`: also quantize each such group alone.
        steps: Also train that many steps under each plan.
        data: What to feed; None takes what the model's source offers.
        samples: Samples of a file at most; batches at most where batches are given.
        seq_len: Tokens per sample of a text at most.
        batch_size: Samples of a file per batch.
        loss: `loss(outputs, batch)`, a scalar to differentiate; None takes the model file's, else
            the output against a fixed random direction.
        optimizer: `optimizer(parameters)` for `steps`; None takes the model file's, else AdamW.
        backward: Run the backward pass too.
        dtype: Cast the parameters (a copy, where a module is given); None leaves them.
        seed: Of everything random.
        repeats: Run with that many seeds, to learn the spread of what is measured.
        attention: Compute attention by its `dpa` slots too: that of foreign modules, and as with
            `fp8_dpa` that of qrole's own.
        trust_remote_code: Run code that a model directory brings.
        on_progress: Told of runs done, runs in total, and what is running.

    Raises:
        NothingMatchedError: No covered layer ran, a glob matches nothing, or a candidate
            quantizes nothing.
        UsageError: There is no data to be had, or the model has no values.
    """
    from qrole.comparing import DataOptions, check_grouping, named_dtype
    from qrole.comparing import compare as measure

    candidates = factories_of(factories)
    base = as_factory(reference) if reference is not None else None
    cast = named_dtype(dtype) if isinstance(dtype, str) else dtype
    options = DataOptions(data_file(data), samples, seq_len, batch_size)
    if one_at_a_time is not None:
        check_grouping(one_at_a_time)
    loaded = runnable(model, "compare", trust_remote_code)
    if dtype is not None and not isinstance(model, (str, os.PathLike)):
        loaded = replace(loaded, module=copy.deepcopy(loaded.module))
    loaded = with_batches(loaded, data)
    loaded = replace(loaded, loss=loss or loaded.loss, optimizer=optimizer or loaded.optimizer)
    return measure(
        loaded,
        candidates,
        reference=base,
        only=only,
        one_at_a_time=one_at_a_time,
        steps=steps,
        data=options,
        backward=backward,
        dtype=cast,
        seed=seed,
        repeats=repeats,
        attention=attention,
        on_progress=on_progress,
    )


def judge(
    report: Report,
    *,
    budgets: str | os.PathLike[str] | Iterable[Budget] = (),
    baseline: str | os.PathLike[str] | Mapping[str, Any] | Report | None = None,
    tolerance: float = 0.05,
) -> Gate:
    """Holds a report to budgets and to a baseline: the gate of `qrole compare`.

    Args:
        report: What `compare` returned.
        budgets: TOML file of limits, or limits.
        baseline: An earlier report, its JSON, or the file that holds it.
        tolerance: Relative growth of an error against the baseline that is let pass.

    Returns:
        What was judged and what broke; `passed` is None where nothing was judged.

    Raises:
        NothingMatchedError: A budget matches nothing, or the baseline has no common candidate.
        UsageError: A file is malformed, or the baseline was made of something else.
    """
    from qrole.comparing import Report as ReportClass
    from qrole.comparing import judge as hold
    from qrole.comparing import load_baseline, load_budgets

    if isinstance(budgets, (str, os.PathLike)):
        budgets = load_budgets(Path(budgets))
    before: dict[str, Any] | None = None
    if isinstance(baseline, (str, os.PathLike)):
        before = load_baseline(Path(baseline))
    elif isinstance(baseline, ReportClass):
        before = baseline.to_json()
    elif baseline is not None:
        before = dict(baseline)
    return hold(report, tuple(budgets), before, tolerance=tolerance)


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


def search(
    model: Model,
    candidates: Sequence[FactoryLike],
    *,
    bits: float | None = None,
    nbytes: int | None = None,
    kl: float | None = None,
    data_free: bool = False,
    backward: bool = False,
    data: InputData | None = None,
    samples: int = 4,
    seq_len: int = 256,
    batch_size: int = 4,
    loss: Callable[[Any, Any], Any] | None = None,
    engines: Sequence[str] = (),
    layout: str = "compressed-tensors",
    journal: str | os.PathLike[str] | None = None,
    seed: int = 0,
    trust_remote_code: bool = False,
    on_progress: NamedProgress | None = None,
) -> SearchResult:
    """Chooses one candidate per layer so that the error is least within a budget.

    Args:
        model: The model, with weights.
        candidates: Two or more factories to choose from.
        bits: Budget: bits per weight that is decided, block scales included.
        nbytes: Budget: bytes of all parameters.
        kl: Budget: KL to high precision, nats per position. Exactly one budget is given.
        data_free: Judge by the weights' own noise; runs nothing.
        backward: Minimize the error of the gradients instead of the output's.
        data: As for `compare`.
        samples: As for `compare`.
        seq_len: As for `compare`.
        batch_size: As for `compare`.
        loss: As for `compare`.
        engines: As for `apply`: only formats that all of them load.
        layout: Layout of the checkpoint for them.
        journal: File that keeps measurements for a stopped search of the same weights; None keeps
            none.
        seed: Of everything random.
        trust_remote_code: Run code that a model directory brings.
        on_progress: Told of runs done, runs in total, and what is measured.

    Raises:
        UsageError: Fewer than two candidates, not exactly one budget, or no data to be had.
        NothingMatchedError: Nothing fits the budget.
    """
    from qrole.comparing import DataOptions
    from qrole.searching import Budget, check_request
    from qrole.searching import search as find

    budget, factories = Budget(bits, nbytes, kl), factories_of(candidates)
    options = DataOptions(data_file(data), samples, seq_len, batch_size)
    check_request(factories, budget, data_free)
    loaded = with_batches(runnable(model, "search", trust_remote_code), data)
    with tempfile.TemporaryDirectory() as scratch:
        return find(
            replace(loaded, loss=loss or loaded.loss),
            factories,
            budget,
            data_free=data_free,
            backward=backward,
            data=options,
            engines=engines,
            layout=layout,
            journal=Path(journal) if journal is not None else Path(scratch) / "journal",
            seed=seed,
            on_progress=on_progress,
        )
