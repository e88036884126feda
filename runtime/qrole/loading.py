"""From what the user names to a model: Python files, HuggingFace directories, plain weights."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrole.errors import CheckpointError, MissingExtraError, UsageError
from qrole.user_code import load_attribute, load_file, running_user_code

if TYPE_CHECKING:
    from torch import nn

    from qrole.checkpoint.headers import TensorInfo

__all__ = ["LoadedModel", "load_model"]


@dataclass(frozen=True)
class LoadedModel:
    """A model, or the headers of its weights, with what else its source offers.

    Invariant: at least one of `module` and `tensors` is given.

    Attributes:
        spec: What the user named.
        kind: `python`, `huggingface` or `weights`.
        module: The module; its parameters are on the meta device when weights were not asked for.
        tensors: Headers of the stored tensors, for `huggingface` and `weights`.
        directory: Where config, tokenizer and weights are; None for Python models.
        example_inputs: Gives a tuple or dict for one forward, or None.
        calibration_data: Gives an iterable of such, or None.
        loss: `loss(outputs, batch) -> scalar tensor`, or None.
        optimizer: `optimizer(parameters) -> torch.optim.Optimizer`, or None.
        notes: What the user should know, in sentences.
    """

    spec: str
    kind: str
    module: nn.Module | None = None
    tensors: Mapping[str, TensorInfo] | None = None
    directory: Path | None = None
    example_inputs: Callable[[], Any] | None = None
    calibration_data: Callable[[], Iterable[Any]] | None = None
    loss: Callable[[Any, Any], Any] | None = None
    optimizer: Callable[[Any], Any] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.module is not None or self.tensors is not None


def load_model(spec: str, *, weights: bool, trust_remote_code: bool = False) -> LoadedModel:
    """Loads what `spec` names.

    Args:
        spec: `model.py`, `model.py:attr`, `pkg.mod:attr`, a HuggingFace-style directory, or a
            `.safetensors` file or directory of such.
        weights: Load the values; otherwise a HuggingFace model is built on the meta device and
            plain weights are known by their headers alone.
        trust_remote_code: Run Python code that a HuggingFace directory brings along.

    Raises:
        UsageError: `spec` names nothing that can be loaded.
        UserCodeError: The user's file raised.
        CheckpointError: A weights file is missing, truncated or corrupt.
        MissingExtraError: A HuggingFace directory without `qrole[hf]` installed.
    """
    path = Path(spec)
    if path.is_dir():
        return _load_directory(path, spec, weights, trust_remote_code)
    if path.suffix == ".safetensors":
        return _load_weights(path, spec)
    if spec.endswith(".py"):
        return _load_python(load_file(path), spec, None)
    if ":" in spec:
        where, _, attr = spec.rpartition(":")
        if where.endswith(".py"):
            return _load_python(load_file(Path(where)), spec, attr)
        return _load_python(None, spec, attr)
    if path.is_file():
        raise UsageError(
            f"{spec} is a file of a kind that is not read",
            expected="a Python file or a .safetensors file",
            hint="convert a pickle checkpoint to safetensors, or load it in build() of a model.py "
            "with torch.load(..., weights_only=True)",
        )
    raise UsageError(
        f"there is no model {spec!r}",
        expected="a Python file (model.py or model.py:attr), pkg.mod:attr, a directory with "
        "config.json and safetensors, or a .safetensors file",
        hint="check the path; it is taken relative to the current directory",
    )


def _load_python(namespace: Any, spec: str, attr: str | None) -> LoadedModel:
    if namespace is None:
        found: Any = load_attribute(spec)
        namespace = inspect.getmodule(found) or object()
    elif attr is not None:
        found = load_attribute(spec)
    else:
        names = ("build", "build_model", "model")
        name = next((n for n in names if hasattr(namespace, n)), None)
        if name is None:
            raise UsageError(
                f"{spec} defines no model",
                expected="a function build() or build_model(), or a module-level `model`",
                hint=f"define one, or name another attribute as {spec}:attr",
            )
        found = getattr(namespace, name)
    from torch import nn

    file = getattr(namespace, "__file__", None)
    if callable(found) and not isinstance(found, nn.Module):
        with running_user_code(f"{getattr(found, '__name__', 'build')}() of {spec}", file):
            found = found()
    if not isinstance(found, nn.Module):
        raise UsageError(
            f"{spec} gives an object of type {type(found).__name__}",
            expected="a torch.nn.Module, or a function without arguments that returns one",
            hint="return the module from build()",
        )
    return LoadedModel(
        spec,
        "python",
        module=found,
        example_inputs=getattr(namespace, "example_inputs", None),
        calibration_data=getattr(namespace, "calibration_data", None),
        loss=getattr(namespace, "loss", None),
        optimizer=getattr(namespace, "optimizer", None),
    )


def _load_weights(path: Path, spec: str, notes: tuple[str, ...] = ()) -> LoadedModel:
    from qrole.checkpoint.headers import read_headers

    directory = path if path.is_dir() else path.parent
    return LoadedModel(
        spec, "weights", tensors=read_headers(path), directory=directory, notes=notes
    )


def _load_directory(path: Path, spec: str, weights: bool, trust_remote_code: bool) -> LoadedModel:
    config = read_config(path)
    if config is None or not config.get("model_type"):
        what = "no config.json" if config is None else "a config.json without model_type"
        return _load_weights(
            path, spec, (f"{spec} has {what}: roles from tensor names and shapes",)
        )
    from qrole.checkpoint.headers import read_headers
    from qrole.emitters.huggingface import build_from_directory

    tensors = read_headers(path)
    module = build_from_directory(path, config, weights, trust_remote_code)
    return LoadedModel(spec, "huggingface", module=module, tensors=tensors, directory=path)


def read_config(directory: Path) -> dict[str, Any] | None:
    """The directory's config.json; None where there is none.

    Raises:
        CheckpointError: It is no JSON object.
    """
    path = directory / "config.json"
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}",
            expected="a JSON object",
            hint="fetch the file again",
        ) from error
    if not isinstance(config, dict):
        raise CheckpointError(
            f"{path} holds a {type(config).__name__}",
            expected="a JSON object",
            hint="fetch it again",
        )
    return config


def require_transformers(purpose: str) -> Any:
    """The transformers package.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise MissingExtraError("transformers", "hf", purpose) from error
    return transformers
