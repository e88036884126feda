"""`load`: a written checkpoint back as a model, decoded, or as the codes that it holds."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from qrole.checkpoint.native.detection import is_native
from qrole.checkpoint.stored import StoredModel, open_stored
from qrole.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from qrole.quantizers import QuantizedTensor

    Model = TypeVar("Model", bound=nn.Module)

__all__ = ["load"]

_EXTRA = "_extra_state"
_SHOWN = 3


@overload
def load(
    directory: str | Path, *, dtype: torch.dtype | None = ..., dequantize: Literal[False]
) -> dict[str, torch.Tensor | QuantizedTensor]: ...


@overload
def load(directory: str | Path, *, into: Model) -> Model: ...


@overload
def load(
    directory: str | Path, *, dtype: torch.dtype | None = ..., trust_remote_code: bool = ...
) -> nn.Module | dict[str, torch.Tensor]: ...


def load(
    directory: str | Path,
    *,
    dequantize: bool = True,
    dtype: torch.dtype | None = None,
    into: nn.Module | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """Reads a checkpoint that `apply` has written, in any of its layouts.

    Activations are not quantized by what is returned: it computes with the values that the stored
    weights stand for. No package but transformers is needed, and that for its own models only.

    Args:
        directory: The checkpoint.
        dequantize: Decode the weights: in fp32, rounded once to `dtype`. False gives the codes.
        dtype: Of everything that is floating-point. None: what config.json names, else that of the
            tensors that are not quantized, which then stay as they are.
        into: A module to fill, whose parameters keep their dtypes; it must have the tensors of the
            model that was quantized, no more and no fewer.
        trust_remote_code: Run code that the directory brings.

    Returns:
        With `into`, that module. Where config.json names a model of transformers, that model in
        eval mode. Otherwise its state: tensors by name, as `load_state_dict` takes them.

        Without `dequantize`: for each quantized weight (out, in) a `QuantizedTensor` under
        `<module>.weight`, its data mapped from the file, bit for bit what the quantizer made; all
        other tensors as they are; and the numbers of static input scales under their stored names.

    Raises:
        CheckpointError: A file is missing or malformed; tensors and declaration disagree; or the
            model has other tensors or shapes. Nothing was loaded then.
        NothingMatchedError: The directory declares no quantization.
        UsageError: Arguments exclude each other, or the layout is not known.
        MissingExtraError: transformers is needed and not installed.
    """
    _check(dequantize, dtype, into)
    stored = _open(Path(directory))
    if not dequantize:
        return _codes(stored, dtype)
    if into is not None:
        return _fill(into, stored)
    if stored.config.get("model_type"):
        return _transformers_model(stored, dtype, trust_remote_code)
    return stored.decoded(dtype)


def _check(dequantize: bool, dtype: torch.dtype | None, into: nn.Module | None) -> None:
    if into is None:
        return
    clash = "dequantize=False" if not dequantize else "dtype" if dtype is not None else ""
    if clash:
        raise UsageError(
            f"into and {clash} were both given",
            expected="a module to fill, which decodes into the dtypes of its parameters",
            hint=f"leave {clash} out, or load without into",
        )
    if any(tensor.is_meta for tensor in (*into.parameters(), *into.buffers())):
        raise UsageError(
            f"the module {type(into).__name__} has tensors on the meta device",
            expected="a module with memory for its weights",
            hint="build it without torch.device('meta'), or call module.to_empty(device='cpu')",
        )


def _open(directory: Path) -> StoredModel:
    if not directory.is_dir() or not is_native(directory):
        return open_stored(directory)
    from qrole.checkpoint.native.stored import open_native

    return open_native(directory)


def _codes(
    stored: StoredModel, dtype: torch.dtype | None
) -> dict[str, torch.Tensor | QuantizedTensor]:
    state: dict[str, torch.Tensor | QuantizedTensor] = {
        name: stored.tensor(info) for name, info in (stored.plain | stored.inputs).items()
    }
    for module in stored.weights:
        state[f"{module}.weight"] = stored.quantized(module, dtype or stored.dtype)
    return state


def _fill(module: nn.Module, stored: StoredModel) -> nn.Module:
    import torch

    found = module.state_dict(keep_vars=True)
    own = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
    _check_names(type(module).__name__, own, stored)
    state = stored.decoded(None, {name: value.dtype for name, value in own.items()})
    module.load_state_dict(state, strict=False)
    return module


def _check_names(model: str, own: dict[str, torch.Tensor], stored: StoredModel) -> None:
    """Compares names and shapes; tied parameters need one of their names."""
    shapes = stored.shapes()
    filled = {own[name].data_ptr() for name in shapes if name in own}
    missing = [
        name
        for name, value in own.items()
        if name not in shapes and not name.endswith(_EXTRA) and value.data_ptr() not in filled
    ]
    unknown = [name for name in shapes if name not in own and not name.endswith(_EXTRA)]
    wrong = [
        f"{name} {list(shape)} for {list(own[name].shape)}"
        for name, shape in shapes.items()
        if name in own and not name.endswith(_EXTRA) and shape != tuple(own[name].shape)
    ]
    _refuse(stored.directory, model, missing, unknown, wrong)


def _refuse(
    directory: Path, model: str, missing: list[str], unknown: list[str], wrong: list[str]
) -> None:
    parts = {"has nothing for": missing, "has no place for": unknown, "has other shapes:": wrong}
    texts = []
    for text, names in parts.items():
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        who = str(directory) if names is missing else model
        texts += [f"{who} {text} {', '.join(names[:_SHOWN])}{more}"] if names else []
    if texts:
        raise CheckpointError(
            f"the checkpoint does not fit {model}: {'; '.join(texts)}",
            expected="the names and shapes of the model that was quantized",
            hint="build the same model; qrole.load(directory, dequantize=False) shows the names",
        )


def _transformers_model(
    stored: StoredModel, dtype: torch.dtype | None, trust_remote_code: bool
) -> nn.Module:
    from qrole.emitters.huggingface import build_from_state

    state = stored.decoded(dtype)
    module, unused = build_from_state(
        stored.directory, stored.config, state, dtype or stored.dtype, trust_remote_code
    )
    decoded = {weight.tensor for weight in stored.weights.values()}
    _refuse(stored.directory, type(module).__name__, [], sorted(decoded.intersection(unused)), [])
    if unused:
        warnings.warn(
            f"{type(module).__name__} has no place for {len(unused)} tensors of "
            f"{stored.directory}, {unused[0]} first; they were left out",
            stacklevel=3,
        )
    return module
