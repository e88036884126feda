"""One job on several processes, as `torchrun` starts them; on one host or on a shared file system.

Units are dealt by a counter in the processes' common store: whoever is free takes the next one, so
none waits for long. Each process keeps its own journal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from qrole.errors import UsageError

__all__ = ["Ranks", "ranks_of_environment"]

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The processes of a job.

    Attributes:
        rank: This process.
        world: How many there are.
        store: What they share, a `torch.distributed.Store`; None for a single process.
    """

    rank: int = 0
    world: int = 1
    store: Any = None

    @property
    def leads(self) -> bool:
        """This process does what is done once."""
        return self.rank == 0

    def wait_for_all(self) -> None:
        """Returns when every process has come here."""
        if self.store is not None:
            import torch.distributed as dist

            dist.barrier()

    def deal(self, items: Sequence[T]) -> Iterator[T]:
        """The items that fall to this process, each to one process only."""
        if self.store is None:
            yield from items
            return
        while (taken := self.store.add("units", 1) - 1) < len(items):
            yield items[taken]

    def close(self) -> None:
        """Ends the process group."""
        if self.store is not None:
            import torch.distributed as dist

            dist.destroy_process_group()


def ranks_of_environment() -> Ranks:
    """The processes that `torchrun` has started, or this one alone.

    Raises:
        UsageError: The environment is that of a launcher, and incomplete.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Ranks()
    if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        raise UsageError(
            f"WORLD_SIZE is {world}, and RANK or MASTER_ADDR is not set",
            expected="the environment that torchrun makes",
            hint="start with `torchrun --nproc-per-node N -m qrole_cli apply ...`",
        )
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, world = next(rendezvous("env://"))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    return Ranks(rank, world, PrefixStore("qrole", store))
