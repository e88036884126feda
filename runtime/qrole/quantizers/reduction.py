"""The amax of a tensor that is spread over the ranks of a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

__all__ = ["reduce_amax"]


def reduce_amax(amax: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Maximum over a group's ranks; the amax itself where no process group is initialized.

    Args:
        amax: fp32, any shape, the same on every rank.
        group: None is the default group.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return amax
    reduced = amax.clone()
    dist.all_reduce(reduced, op=dist.ReduceOp.MAX, group=group)
    return reduced
