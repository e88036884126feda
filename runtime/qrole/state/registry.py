"""Delayed-scaling buffers that are in use, and the step that updates them all.

A module registers its buffers when it runs in training mode. Forward buffers are updated where the
outermost autocast region ends, backward buffers by the first module of the region, which is the
last to run backward.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from qrole.quantizers.reduction import reduce_amax

if TYPE_CHECKING:
    import torch.distributed as dist

    from qrole.state.delayed import DelayedBuffers

__all__ = ["begin_step", "is_first_module", "register", "reset", "update_delayed_scaling"]

#: In order of registration, which is the same on every rank.
_registered: list[tuple[weakref.ref[DelayedBuffers], dist.ProcessGroup | None]] = []
_first_module = False


def register(buffers: DelayedBuffers, group: dist.ProcessGroup | None = None) -> None:
    """Adds buffers to those that a step updates; once, however often it is called.

    Args:
        buffers: Held weakly; they leave when their last state does.
        group: Ranks to take their amaxes over; None is the default group.
    """
    if all(known() is not buffers for known, _ in _registered):
        _registered.append((weakref.ref(buffers), group))


def begin_step() -> None:
    """Called where an outermost autocast region begins."""
    global _first_module
    _first_module = True


def is_first_module() -> bool:
    """Whether the caller is the first to ask in this outermost region.

    The module that gets True updates the backward buffers in its backward pass.
    """
    global _first_module
    first, _first_module = _first_module, False
    return first


def reset() -> None:
    """Forgets every buffer."""
    global _first_module
    _registered.clear()
    _first_module = False


def update_delayed_scaling(*, forward: bool) -> None:
    """Reduces the amaxes over the ranks and rolls history and scale of every buffer."""
    _registered[:] = [(ref, group) for ref, group in _registered if ref() is not None]
    groups: dict[dist.ProcessGroup | None, list[DelayedBuffers]] = {}
    for ref, group in _registered:
        buffers = ref()
        if buffers is not None and buffers.forward is forward:
            groups.setdefault(group, []).append(buffers)
    for group, members in groups.items():
        _reduce([b for b in members if b.recipe.reduce_amax], group)
        for buffers in members:
            buffers.update()


def _reduce(members: list[DelayedBuffers], group: dist.ProcessGroup | None) -> None:
    """One all-reduce for all buffers of a group."""
    if not members:
        return
    amaxes = [buffers.amax_history[0] for buffers in members]
    reduced = reduce_amax(torch.cat(amaxes), group)
    parts = torch.split(reduced, [a.numel() for a in amaxes])
    for amax, part in zip(amaxes, parts, strict=True):
        amax.copy_(part)
