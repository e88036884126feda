"""What a model asks for, what a factory answers, and what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qrole.emitters import EmitOptions, walk
from qrole.given import as_factory, as_loaded, checkpoint_directory
from qrole.plans import Inventory, Plan, build_plan

if TYPE_CHECKING:
    from qrole.auditing import AuditReport
    from qrole.given import FactoryLike, Model

__all__ = ["audit", "inspect", "plan"]


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
