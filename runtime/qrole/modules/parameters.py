"""How the modules make and initialize their parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qrole.errors import ConfigError

__all__ = ["Init", "ParameterSplit", "default_init", "empty_parameter", "resolve_device"]

Init = Callable[[Tensor], object]


def resolve_device(device: torch.device | str | None) -> torch.device | None:
    """The device that parameters are made on.

    Args:
        device: As TransformerEngine takes it, whose default is `cuda`.

    Returns:
        That device; None, torch's current default, for `cuda` on a machine without CUDA.
    """
    if device is None:
        return torch.device("cuda") if torch.cuda.is_available() else None
    resolved = torch.device(device)
    if resolved.type == "cuda" and not torch.cuda.is_available():
        return None
    return resolved


def default_init(weight: Tensor) -> Tensor:
    """TransformerEngine's default for the weights of linear layers."""
    return nn.init.normal_(weight, mean=0.0, std=0.023)


def empty_parameter(
    *shape: int, device: torch.device | str | None, dtype: torch.dtype | None
) -> nn.Parameter:
    """A parameter without values.

    Args:
        shape: Its shape.
        device: See `resolve_device`.
        dtype: torch's default dtype where None.
    """
    return nn.Parameter(torch.empty(*shape, device=resolve_device(device), dtype=dtype))


@dataclass(frozen=True)
class ParameterSplit:
    """The parameters that make up one weight (and bias) along its first dimension.

    Attributes:
        weights: Names of the weights' parameters.
        biases: Names of the biases' parameters, in the same order.
        sizes: Their lengths in the first dimension.
    """

    weights: tuple[str, ...]
    biases: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(
        cls, split: Sequence[str] | Mapping[str, int] | None, out_features: int
    ) -> ParameterSplit:
        """From TransformerEngine's `parameters_split`.

        Args:
            split: Names of equal parts, or names with sizes; None for one parameter.
            out_features: What the sizes must add up to.

        Raises:
            ConfigError: There are no parts, or they do not add up.
        """
        if split is None:
            return cls(("weight",), ("bias",), (out_features,))
        if isinstance(split, Mapping):
            sizes = tuple(split.values())
        else:
            sizes = (out_features // max(len(split), 1),) * len(split)
        if sum(sizes) != out_features:
            raise ConfigError(
                f"parameters_split={split!r} for a weight of {out_features} rows",
                expected=f"parts whose sizes add up to {out_features}, not {sum(sizes)}",
                hint="name equal parts as a tuple, or parts with their sizes as a dict",
            )
        names = [name.rstrip("_") for name in split]
        return cls(
            tuple(f"{name}_weight" for name in names),
            tuple(f"{name}_bias" for name in names),
            sizes,
        )
