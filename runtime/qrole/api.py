"""One function per command, for programs: what `import qrole` offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qrole.emitters import EmitOptions, walk
from qrole.loading import LoadedModel, load_model
from qrole.plans import Inventory, Plan, build_plan
from qrole.plugins import Factory, load_factory

if TYPE_CHECKING:
    from torch import nn

__all__ = ["as_factory", "inspect", "plan"]


def inspect(
    model: str | LoadedModel | nn.Module,
    *,
    attention: bool = False,
    trust_remote_code: bool = False,
) -> Inventory:
    """The slots of a model with their roles, and every parameter that has none.

    Args:
        model: A module, or what the command line takes: `model.py`, a directory, a file.
        attention: Emit `dpa` slots for attention modules of foreign models too.
        trust_remote_code: Run code that a model directory brings.

    Raises:
        QroleError: The model cannot be loaded; see `qrole.errors`.
    """
    if isinstance(model, str):
        model = load_model(model, weights=False, trust_remote_code=trust_remote_code)
    return walk(model, EmitOptions(attention=attention))


def plan(
    model: str | LoadedModel | nn.Module | Inventory,
    factory: str | Callable[..., Any] | Factory,
    **options: Any,
) -> Plan:
    """Every slot of a model with the quantizer that a factory gives it.

    Args:
        model: As for `inspect`, or an inventory that it returned.
        factory: A function, or a name as `--factory` takes it.
        **options: As for `inspect`.

    Raises:
        FactoryError: The factory raised, returned None, or returned no quantizer.
        NothingMatchedError: The model has no slot.
    """
    inventory = model if isinstance(model, Inventory) else inspect(model, **options)
    return build_plan(inventory, as_factory(factory))


def as_factory(factory: str | Callable[..., Any] | Factory) -> Factory:
    """A factory with its identity, from a name, a callable, or itself."""
    if isinstance(factory, Factory):
        return factory
    return load_factory(factory) if isinstance(factory, str) else Factory.of(factory)
