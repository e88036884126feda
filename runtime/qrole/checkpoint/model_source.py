"""A model in memory as a source: its parameters and buffers, tied ones once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qrole.checkpoint.source import Source, SourceTensor, open_source
from qrole.errors import CheckpointError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from qrole.loading import LoadedModel

__all__ = ["source_of_loaded", "source_of_module"]


def source_of_loaded(loaded: LoadedModel) -> Source:
    """A loaded model as a source: the files of one that comes from a checkpoint, else its module.

    Raises:
        CheckpointError: Files or tensors cannot be used.
    """
    if loaded.tensors is not None:
        return open_source(Path(loaded.spec), loaded.spec)
    assert loaded.module is not None, "a Python model has a module"
    return source_of_module(loaded.module, loaded.spec)


def source_of_module(module: nn.Module, name: str) -> Source:
    """What `state_dict()` of a module gives, as a source.

    Raises:
        CheckpointError: A tensor has no values, or a dtype that safetensors does not have.
    """
    tensors: dict[str, SourceTensor] = {}
    first: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    tied: dict[str, str] = {}
    for key, value in module.state_dict(keep_vars=True).items():
        tensor = value.detach()
        if tensor.is_meta:
            raise CheckpointError(
                f"{key} of {name} is on the meta device and has no values",
                expected="a model with weights",
                hint="load the weights in build()",
            )
        identity = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and identity in first:
            tied[key] = first[identity]
            continue
        first[identity] = key
        held = tensor.cpu().contiguous()
        tensors[key] = SourceTensor(key, _dtype(key, held), tuple(held.shape), memory=held)
    return Source(name, tensors, None, None, tied)


def _dtype(key: str, tensor: torch.Tensor) -> str:
    import torch

    names = {
        torch.float64: "F64",
        torch.float32: "F32",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.int64: "I64",
        torch.int32: "I32",
        torch.int16: "I16",
        torch.int8: "I8",
        torch.uint8: "U8",
        torch.bool: "BOOL",
        torch.float8_e4m3fn: "F8_E4M3",
        torch.float8_e5m2: "F8_E5M2",
    }
    if tensor.dtype not in names:
        raise CheckpointError(
            f"{key} is {tensor.dtype}",
            expected=f"one of {', '.join(map(str, names))}",
            hint="convert it in build()",
        )
    return names[tensor.dtype]
