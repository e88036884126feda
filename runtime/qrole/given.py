"""What callers give: models, factories and data in all their forms, made into one each.

A model is a `torch.nn.Module`; what the command line takes (`model.py`, `pkg.mod:attr`, a
directory, a `.safetensors` file), as text or path; or what `qrole.load_model` gave. A factory is a
function from a role to a quantizer; a name as `--factory` takes it; or what `qrole.load_factory`
gave. Data is a file; one batch (a tensor, a tuple of positional or a mapping of keyword inputs); or
an iterable of batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from qrole.errors import OperandError, UnknownNameError, UsageError
from qrole.loading import LoadedModel, load_model
from qrole.plugins import Factory, load_factory
from qrole.quantizers import Quantizer
from qrole.recipes import CustomRecipe, Recipe

if TYPE_CHECKING:
    import torch
    from torch import nn

    Model = str | os.PathLike[str] | LoadedModel | nn.Module
    FactoryLike = str | os.PathLike[str] | Callable[..., Any] | Factory
    InputData = str | os.PathLike[str] | torch.Tensor | Mapping[str, Any] | Iterable[Any]

__all__ = [
    "as_factory",
    "as_loaded",
    "as_source",
    "checkpoint_directory",
    "choice",
    "data_file",
    "factories_of",
    "runnable",
    "with_batches",
]

Choice = TypeVar("Choice", bound=StrEnum)


def as_factory(factory: FactoryLike) -> Factory:
    """A factory with its identity, from a name, a callable, or itself.

    Raises:
        OperandError: It is a quantizer or a recipe, or nothing that can be called.
        UsageError: No factory has the name; see `load_factory`.
    """
    if isinstance(factory, Factory):
        return factory
    if isinstance(factory, (str, os.PathLike)):
        return load_factory(os.fspath(factory))
    quantizer = isinstance(factory, Quantizer) or (
        isinstance(factory, type) and issubclass(factory, Quantizer)
    )
    if callable(factory) and not quantizer:
        return Factory.of(factory)
    kind = factory.__name__ if isinstance(factory, type) else type(factory).__name__
    hint = "name one, or pass a function; `qrole factories` lists the names"
    if quantizer:
        hint = f"wrap it: lambda role: {kind}(...)"
    elif isinstance(factory, CustomRecipe):
        hint = "pass recipe.qfactory"
    elif isinstance(factory, Recipe):
        hint = "name the factory that mirrors it, such as 'nvfp4' or 'delayed_scaling'"
    raise OperandError(
        f"{kind} is no factory",
        expected="a function from a role to a quantizer, or the name of one",
        hint=hint,
    )


def as_loaded(model: Model, *, weights: bool, trust_remote_code: bool) -> LoadedModel:
    """The model; one that is named is loaded, with its weights or without.

    Raises:
        OperandError: It is no model and no name.
        QroleError: It cannot be loaded; see `load_model`.
    """
    if isinstance(model, (str, os.PathLike)):
        return load_model(os.fspath(model), weights=weights, trust_remote_code=trust_remote_code)
    return model if isinstance(model, LoadedModel) else _of_module(model)


def _of_module(module: object) -> LoadedModel:
    from torch import nn

    if not isinstance(module, nn.Module):
        raise OperandError(
            f"a {type(module).__name__} is no model",
            expected="a torch.nn.Module, a path or name as the command line takes it, or what "
            "qrole.load_model gave",
            hint="qrole.load_model tells what its argument can be",
        )
    return LoadedModel(type(module).__name__, "python", module=module)


def runnable(model: Model, command: str, trust_remote_code: bool) -> LoadedModel:
    """The model with its weights.

    Raises:
        UsageError: A module that is given has none.
    """
    loaded = as_loaded(model, weights=True, trust_remote_code=trust_remote_code)
    if loaded.module is not None and any(p.is_meta for p in loaded.module.parameters()):
        raise UsageError(
            f"{loaded.spec} has parameters on the meta device, and {command} has to run it",
            expected="a model with weights",
            hint="load it with qrole.load_model(..., weights=True)",
        )
    return loaded


def as_source(model: Model) -> str | LoadedModel:
    """Text for what is named, which may be streamed; a loaded model for what is in memory.

    Raises:
        UsageError: A model of transformers is in memory, without what belongs to a checkpoint.
    """
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model)
    if isinstance(model, LoadedModel):
        return model
    loaded = _of_module(model)
    if hasattr(model, "save_pretrained") and hasattr(model, "config"):
        raise UsageError(
            f"{loaded.spec} is a model of transformers in memory",
            expected="its directory, with the config and tokenizer that belong to a checkpoint",
            hint="model.save_pretrained(folder), and pass the folder",
        )
    return loaded


def data_file(data: InputData | None) -> Path | None:
    """The file, where data is one."""
    return Path(data) if isinstance(data, (str, os.PathLike)) else None


def with_batches(loaded: LoadedModel, data: InputData | None) -> LoadedModel:
    """A model whose calibration data are the batches given; as it is for None and for a file."""
    import torch

    if data is None or isinstance(data, (str, os.PathLike)):
        return loaded
    single = isinstance(data, (torch.Tensor, Mapping, tuple))
    given = [dict(b) if isinstance(b, Mapping) else b for b in ([data] if single else data)]
    return replace(loaded, calibration_data=lambda: given)


def factories_of(factories: FactoryLike | Iterable[FactoryLike]) -> list[Factory]:
    """One factory or several."""
    if isinstance(factories, (str, os.PathLike, Factory)) or callable(factories):
        return [as_factory(factories)]
    return [as_factory(factory) for factory in factories]


def checkpoint_directory(model: Model) -> Path:
    """The directory of a written checkpoint.

    Raises:
        UsageError: It is none.
    """
    if isinstance(model, (str, os.PathLike)) and Path(model).is_dir():
        return Path(model)
    shown = model if isinstance(model, (str, os.PathLike)) else type(model).__name__
    raise UsageError(
        f"{shown} is no directory, and no factory is given",
        expected="a factory to audit a plan, or the directory of a written checkpoint",
        hint="`qrole factories` lists the factories that are installed",
    )


def choice(kind: type[Choice], value: str, name: str) -> Choice:
    """A member by its value.

    Raises:
        UnknownNameError: There is none; `name` is the argument's.
    """
    if value not in set(kind):
        raise UnknownNameError(f"value of {name}", value, [member.value for member in kind])
    return kind(value)
