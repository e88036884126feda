"""One job on several processes, as `torchrun` starts them; on one host or on a shared file system.

Units are dealt by a counter in the processes' common store: whoever is free takes the next one, so
none waits for long. Each process keeps its own journal. What one process must know of another goes
through the store, never through files, which another host may see late.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from qrole.errors import CheckpointError, UsageError

__all__ = ["Ranks", "ranks_of_environment"]

T = TypeVar("T")

#: Seconds between two looks at what another process has not said yet.
_LOOK = 0.1


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

    def share(self, name: str, value: Any) -> Any:
        """The first process's value, a JSON one, on all of them; others wait as long as it takes.

        Returns when all have it: the store may end with the first process.

        Raises:
            CheckpointError: A process has ended.
        """
        if self.store is None:
            return value
        import torch.distributed as dist

        with _together():
            if self.leads:
                self.store.set(name, json.dumps(value))
            while not self.store.check([name]):
                time.sleep(_LOOK)
            shared = json.loads(self.store.get(name))
            dist.barrier()
        return shared

    def gather(self, name: str, value: Any) -> list[Any]:
        """Every process's value, a JSON one, by rank; returns when all have given theirs.

        Raises:
            CheckpointError: A process has ended.
        """
        if self.store is None:
            return [value]
        import torch.distributed as dist

        with _together():
            self.store.set(f"{name}/{self.rank}", json.dumps(value))
            dist.barrier()
            return [json.loads(self.store.get(f"{name}/{rank}")) for rank in range(self.world)]

    def deal(self, items: Sequence[T]) -> Iterator[T]:
        """The items that fall to this process, each to one process only."""
        if self.store is None:
            yield from items
            return
        while (taken := self._next()) < len(items):
            yield items[taken]

    def _next(self) -> int:
        with _together():
            return int(self.store.add("units", 1)) - 1

    def close(self) -> None:
        """Ends the process group."""
        if self.store is not None:
            import torch.distributed as dist

            dist.destroy_process_group()


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Says in qrole's words that another process cannot be reached."""
    try:
        yield
    except RuntimeError as error:  # torch's errors of stores and groups are such
        raise CheckpointError(
            "another process of this run has ended before the work was done",
            expected="all processes that torchrun has started, on every host, up to the end",
            hint="look at what it said, then run the same command again: it goes on where it "
            "stopped",
        ) from error


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
