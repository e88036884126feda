"""Delayed-scaling state in checkpoints, under TransformerEngine's key `_extra_state`.

A module writes the key only where it has such state, as the bytes of a safetensors file in a uint8
tensor. It accepts the key in every checkpoint: TransformerEngine writes an empty tensor, or a
pickle, which is not opened.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from qrole.state import DelayedBuffers

__all__ = ["ExtraState", "ForeignStateWarning"]

_KEY = "_extra_state"
_FIELDS = ("scale", "amax_history")


class ForeignStateWarning(UserWarning):
    """A checkpoint's delayed-scaling state was not taken over."""


class ExtraState(nn.Module):
    """A module whose delayed-scaling buffers go into its checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self._loaded: dict[str, Tensor] = {}

    def delayed_buffers(self) -> dict[str, DelayedBuffers]:
        """The buffers there are, by direction (`forward`, `backward`)."""
        raise NotImplementedError

    def take_over_loaded(self) -> None:
        """Copies what was loaded into the buffers; what has no buffers yet waits for them."""
        for mode, buffers in self.delayed_buffers().items():
            found = {name: self._loaded.pop(f"{mode}.{name}", None) for name in _FIELDS}
            scale, history = found["scale"], found["amax_history"]
            if scale is None or history is None:
                continue
            if scale.shape != buffers.scale.shape or history.shape != buffers.amax_history.shape:
                _warn(
                    self,
                    f"its {mode} history has shape {tuple(history.shape)}, not "
                    f"{tuple(buffers.amax_history.shape)}",
                )
                continue
            buffers.scale.copy_(scale)
            buffers.amax_history.copy_(history)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        tensors = {
            f"{mode}.{name}": getattr(buffers, name).cpu()
            for mode, buffers in self.delayed_buffers().items()
            for name in _FIELDS
        }
        if tensors:
            destination[prefix + _KEY] = torch.frombuffer(
                bytearray(save(tensors)), dtype=torch.uint8
            )

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        key = prefix + _KEY
        if key not in state_dict:
            return
        if key in unexpected_keys:
            unexpected_keys.remove(key)
        stored = state_dict[key]
        if isinstance(stored, Tensor) and stored.numel():
            self._loaded = _unpack(self, stored)
            self.take_over_loaded()


def _unpack(module: nn.Module, stored: Tensor) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load(bytes(stored.cpu().numpy()))
    except SafetensorError:
        _warn(module, "it is a pickle, which could run code")
        return {}
    return tensors


def _warn(module: nn.Module, reason: str) -> None:
    warnings.warn(
        f"{type(module).__name__}: the delayed-scaling state of the checkpoint is not taken over: "
        f"{reason}; scales stay as they are",
        ForeignStateWarning,
        stacklevel=4,
    )
