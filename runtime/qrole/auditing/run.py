"""Running an audit: of a model with a factory, or of a checkpoint that is written already."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrole.auditing.declaration import read_declaration
from qrole.auditing.findings import AuditReport, Finding, worst_first
from qrole.auditing.options import AuditOptions
from qrole.auditing.registry import codes
from qrole.auditing.settings_use import SettingsSubject, ignored
from qrole.auditing.subject import PlanSubject
from qrole.auditing.weights import WeightFacts, WeightsSubject
from qrole.emitters import EmitOptions, walk
from qrole.given import as_factory
from qrole.loading import LoadedModel, load_model
from qrole.plans import Plan, build_plan
from qrole.plugins import Factory
from qrole.trace import Tracer

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["audit_checkpoint", "audit_model"]


def audit_model(
    model: str | LoadedModel | nn.Module,
    factory: str | Callable[..., Any] | Factory,
    options: AuditOptions | None = None,
    *,
    attention: bool = False,
    trust_remote_code: bool = False,
) -> AuditReport:
    """What is wrong with the plan that a factory makes of a model.

    The factory is called once per slot and copy, and watched while it answers; weights are read
    only where they are in memory, or in files and `options.weights` asks for them.

    Args:
        model: A module, or what the command line takes.
        factory: A function, or a name as `--factory` takes it.
        options: Codes, target, engines; default: everything, nothing in particular.
        attention: Emit `dpa` slots for attention modules of foreign models too.
        trust_remote_code: Run code that a model directory brings.

    Raises:
        NothingMatchedError: The model has no slot.
        QroleError: Model or factory cannot be loaded; see `qrole.errors`.
    """
    options = options or AuditOptions()
    if isinstance(model, str):
        model = load_model(model, weights=False, trust_remote_code=trust_remote_code)
    inventory = walk(model, EmitOptions(attention=attention))
    loaded = model if isinstance(model, LoadedModel) else LoadedModel("", "python", module=model)
    found = as_factory(factory)
    tracer = Tracer(found)
    plan = build_plan(inventory, found, collect_errors=True, observe=tracer.observe)
    subjects: dict[str, Any] = {
        "PlanSubject": PlanSubject(plan, options, loaded, tracer.unreached(), tracer.untraceable()),
        "WeightsSubject": WeightsSubject(tuple(_weights(plan, loaded, options))),
    }
    findings, checked = _run(subjects, options)
    slots = sum(slot.copies for slot in inventory.slots)
    return AuditReport(inventory.model, found.name, findings, inventory.notes, slots, len(checked))


def audit_checkpoint(directory: str | Path, options: AuditOptions | None = None) -> AuditReport:
    """What is wrong with what a written checkpoint declares, engine by engine.

    No weights are read, and torch is not imported.

    Args:
        directory: Holds config.json with quantization_config, and safetensors.
        options: Codes and engines; default: everything, the layout's usual engines.

    Raises:
        UsageError: The directory declares no quantization.
        CheckpointError: A file is missing or malformed.
    """
    options = options or AuditOptions()
    subject = read_declaration(Path(directory), options.engines)
    findings, checked = _run({"DeclarationSubject": subject}, options)
    engines = ", ".join(subject.engines) or "no engine"
    notes = (f"read as {engines} would read it",)
    readings = {"stored": {module: stored.label for module, stored in subject.stored.items()}}
    for engine, found in subject.readings.items():
        readings[engine.value] = {module: reading.label for module, reading in found.items()}
    return AuditReport(
        str(directory), "", findings, notes, len(subject.stored), len(checked), readings
    )


def _run(
    subjects: dict[str, Any], options: AuditOptions
) -> tuple[tuple[Finding, ...], frozenset[str]]:
    """Runs the selected checks of the subjects at hand; then those on the settings themselves."""
    known = codes()
    selected = options.selected()
    checked = frozenset(n for n in selected if known[n].subject in subjects)
    found = tuple(
        Finding(known[name], hit)
        for name in sorted(checked)
        for hit in known[name].check(subjects[known[name].subject])
    )
    settings = SettingsSubject(options, found, checked)
    kept = [finding for finding in found if not ignored(finding, options)]
    for name in sorted(n for n in selected if known[n].subject == "SettingsSubject"):
        hits = (Finding(known[name], hit) for hit in known[name].check(settings))
        kept += [finding for finding in hits if not ignored(finding, options)]
    return tuple(sorted(kept, key=worst_first)), checked


def _weights(plan: Plan, model: LoadedModel, options: AuditOptions) -> Iterator[WeightFacts]:
    names = [name for slot in plan.inventory.slots for name in slot.parameters]
    if model.module is not None:
        parameters = dict(model.module.named_parameters(remove_duplicate=False))
        at_hand = {n: parameters[n] for n in names if n in parameters}
        real = {n: p for n, p in at_hand.items() if p.device.type != "meta"}
        yield from (_facts(name, parameter.detach()) for name, parameter in real.items())
        if real:
            return
    if options.weights and model.tensors is not None:
        yield from _stored_weights(model, names)


def _stored_weights(model: LoadedModel, names: Iterable[str]) -> Iterator[WeightFacts]:
    """Facts of weights in files, read one tensor at a time."""
    from safetensors import safe_open

    assert model.tensors is not None
    for name in names:
        if name in model.tensors:
            with safe_open(model.tensors[name].file, framework="pt") as file:
                yield _facts(name, file.get_tensor(name))


def _facts(name: str, weight: torch.Tensor) -> WeightFacts:
    """One pass over the values; only a weight that is not finite is counted in more."""
    import torch

    if not weight.numel() or not weight.is_floating_point():
        return WeightFacts(name, weight.numel(), 0, 0, False)
    values = weight.float() if weight.element_size() == 1 else weight
    low, high = (float(bound) for bound in torch.aminmax(values))
    if math.isfinite(low) and math.isfinite(high):
        return WeightFacts(name, weight.numel(), 0, 0, low == high == 0.0)
    nan, inf = int(torch.isnan(values).sum()), int(torch.isinf(values).sum())
    return WeightFacts(name, weight.numel(), nan, inf, False)
