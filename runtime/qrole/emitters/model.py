"""The walk over a model: every module is offered, every parameter is accounted for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from qrole.emitters.base import EmitOptions, Emitter, class_name
from qrole.emitters.tensors import walk_tensors
from qrole.loading import LoadedModel
from qrole.plans import Inventory, Uncovered
from qrole.plugins import load_emitters
from qrole.roles import Slot

if TYPE_CHECKING:
    from torch import nn

__all__ = ["walk", "walk_module"]


def walk(
    model: LoadedModel | nn.Module,
    options: EmitOptions | None = None,
    emitters: list[Emitter] | None = None,
) -> Inventory:
    """The slots of a model, and every parameter that none of them quantizes.

    Args:
        model: A module, or what `load_model` gave; weights without a module are known by name
            and shape.
        options: What to emit beyond the linear layers.
        emitters: Default: all registered ones.

    Raises:
        UserCodeError: A third party's emitter cannot be loaded.
    """
    options = options or EmitOptions()
    if not isinstance(model, LoadedModel):
        return walk_module(model, type(model).__name__, options, emitters)
    if model.module is not None:
        found = walk_module(model.module, model.spec, options, emitters)
    else:
        assert model.tensors is not None
        found = walk_tensors(model.tensors, model.spec)
    return found if not model.notes else _with_notes(found, model.notes)


def walk_module(
    module: nn.Module,
    name: str,
    options: EmitOptions | None = None,
    emitters: list[Emitter] | None = None,
) -> Inventory:
    """The slots of a module tree; parameters may be on the meta device."""
    options = options or EmitOptions()
    emitters = load_emitters() if emitters is None else emitters
    slots: list[Slot] = []
    by: dict[str, str] = {}
    shared: dict[int, str] = {}
    notes: list[str] = []
    skip: list[str] = []
    for path, child in module.named_modules(remove_duplicate=False):
        if any(path.startswith(prefix) for prefix in skip):
            continue
        if id(child) in shared:
            if next(child.parameters(), None) is not None:
                notes.append(
                    f"{path} is the module {shared[id(child)]} again; its slots count once"
                )
            skip.append(f"{path}.")
            continue
        shared[id(child)] = path
        for emitter in emitters:
            found = emitter.slots(path, child, options)
            if found is None:
                continue
            slots += found
            by[path] = emitter.name
            if emitter.covers_children(child):
                skip.append(f"{path}." if path else "")
            break
    return Inventory(
        model=name,
        slots=tuple(slots),
        uncovered=tuple(_uncovered(module, slots)),
        numel=sum(p.numel() for p in module.parameters()),
        emitters=by,
        tied=_tied(module),
        notes=tuple(notes),
        attention=options.attention,
    )


def _with_notes(inventory: Inventory, notes: tuple[str, ...]) -> Inventory:
    return replace(inventory, notes=notes + inventory.notes)


def _tied(module: nn.Module) -> tuple[tuple[str, ...], ...]:
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return tuple(tuple(group) for group in names.values() if len(group) > 1)


def _uncovered(module: nn.Module, slots: list[Slot]) -> list[Uncovered]:
    covered = {name for slot in slots for name in slot.parameters}
    twins = {name: group for group in _tied(module) for name in group}
    rest: dict[tuple[str, str, bool], list[tuple[str, int]]] = defaultdict(list)
    for name, parameter in module.named_parameters():
        if covered.intersection(twins.get(name, (name,))):
            continue
        path, _, short = name.rpartition(".")
        reason, quantizable = _reason(module.get_submodule(path), short, parameter.dim())
        rest[(path, reason, quantizable)].append((name, parameter.numel()))
    return [
        Uncovered(
            module=path,
            module_class=class_name(module.get_submodule(path)),
            parameters=tuple(name for name, _ in found),
            numel=sum(numel for _, numel in found),
            reason=reason,
            quantizable=quantizable,
        )
        for (path, reason, quantizable), found in rest.items()
    ]


def _reason(owner: nn.Module, short: str, dim: int) -> tuple[str, bool]:
    """Why a parameter has no role, and whether it feeds a matrix product."""
    from torch import nn

    kind = type(owner).__name__
    if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding (a lookup, no matrix product)", False
    if isinstance(owner, nn.modules.conv._ConvNd) and dim >= 2:
        return "convolution: no emitter covers it", True
    if isinstance(owner, nn.RNNBase | nn.RNNCellBase) and dim >= 2:
        return "recurrent layer: no emitter covers it", True
    if any(word in short.lower() for word in ("embed", "position", "pos_", "token")):
        return "embedding (added, no matrix product)", False
    if dim <= 1:
        return "bias" if short.endswith("bias") else "norm or other vector", False
    if any(word in kind.lower() for word in ("router", "gate")):
        return "router: kept in high precision", False
    if dim >= 3:
        return f"{dim}-D parameter of {kind}: no emitter covers it", True
    return f"2-D parameter of {kind}: no emitter covers it", True
