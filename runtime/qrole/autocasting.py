"""The region in which modules quantize, and with which recipe.

The state belongs to the process and not to a thread: autograd may run backward passes in others.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qrole.recipes import DelayedScaling, IgnoredSettingWarning, Recipe

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = [
    "AutocastState",
    "autocast",
    "current_autocast",
    "fp8_autocast",
    "fp8_model_init",
    "quantized_model_init",
]


@dataclass(frozen=True)
class AutocastState:
    """What modules find when they run.

    Attributes:
        enabled: They quantize.
        calibrating: They record amaxes without quantizing (delayed scaling).
        recipe: With which recipe; None is delayed scaling with its defaults.
        amax_reduction_group: Ranks that delayed scaling takes its amaxes over.
        depth: Number of regions around the current line.
    """

    enabled: bool = False
    calibrating: bool = False
    recipe: Recipe | None = None
    amax_reduction_group: dist.ProcessGroup | None = None
    depth: int = 0

    def get_recipe(self) -> Recipe:
        """The recipe, or the default one."""
        return DelayedScaling() if self.recipe is None else self.recipe


_OUTSIDE = AutocastState()
_state = _OUTSIDE


def current_autocast() -> AutocastState:
    """The state that modules find now."""
    return _state


@contextlib.contextmanager
def autocast(
    enabled: bool = True,
    calibrating: bool = False,
    recipe: Recipe | None = None,
    amax_reduction_group: dist.ProcessGroup | None = None,
    _graph: bool = False,
) -> Iterator[None]:
    """Modules that run inside quantize as the recipe says.

    Where the outermost enabled region ends, and gradients are being recorded, the scales of
    delayed scaling's forward tensors are updated.

    Args:
        enabled: False switches quantization off inside.
        calibrating: Record amaxes (delayed scaling) even where `enabled` is False.
        recipe: None is `DelayedScaling()`.
        amax_reduction_group: Ranks to take the amaxes of delayed scaling over; None is the
            default group, where there is one.
        _graph: Accepted as TransformerEngine does; has no meaning.
    """
    global _state
    outer = _state
    _state = AutocastState(enabled, calibrating, recipe, amax_reduction_group, outer.depth + 1)
    if outer.depth == 0:
        _begin_step()
    try:
        yield
    finally:
        _state = outer
        if enabled and outer.depth == 0:
            _end_step()


def _begin_step() -> None:
    from qrole.state.registry import begin_step

    begin_step()


def _end_step() -> None:
    import torch

    from qrole.state.registry import update_delayed_scaling

    if torch.is_grad_enabled():
        update_delayed_scaling(forward=True)


@contextlib.contextmanager
def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: dist.ProcessGroup | None = None,
    _graph: bool = False,
) -> Iterator[None]:
    """Deprecated spelling of `autocast`; the arguments have older names."""
    warnings.warn(
        "fp8_autocast is deprecated; use autocast(enabled=, recipe=, amax_reduction_group=)",
        DeprecationWarning,
        stacklevel=3,
    )
    with autocast(enabled, calibrating, fp8_recipe, fp8_group, _graph):
        yield


@contextlib.contextmanager
def quantized_model_init(
    enabled: bool = True,
    recipe: Recipe | None = None,
    preserve_high_precision_init_val: bool = False,
) -> Iterator[None]:
    """Accepted as TransformerEngine does; parameters stay in high precision all the same.

    Modules quantize their weights in every forward pass, with the same result as long as no
    optimizer step has been taken.
    """
    if enabled:
        warnings.warn(
            "quantized_model_init keeps parameters in high precision; they are quantized in every "
            "forward pass",
            IgnoredSettingWarning,
            stacklevel=3,
        )
    yield


@contextlib.contextmanager
def fp8_model_init(
    enabled: bool = True,
    recipe: Recipe | None = None,
    preserve_high_precision_init_val: bool = False,
) -> Iterator[None]:
    """Deprecated spelling of `quantized_model_init`."""
    warnings.warn(
        "fp8_model_init is deprecated; use quantized_model_init",
        DeprecationWarning,
        stacklevel=3,
    )
    with quantized_model_init(enabled, recipe, preserve_high_precision_init_val):
        yield
