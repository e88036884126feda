"""Who loads a checkpoint, and sizes, as the checkpoint commands say them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from qrole_cli.console import note

if TYPE_CHECKING:
    from qrole.checkpoint.engines import Verdict

__all__ = ["say_verdicts", "size"]


def say_verdicts(verdicts: Iterable[Verdict]) -> None:
    """One line per engine; slots are named where they are not all of them."""
    from qrole.checkpoint.engines import ENGINES

    for verdict in verdicts:
        reasons = f": {'; '.join(verdict.reasons)}" if verdict.reasons else ""
        some = verdict.slots and not verdict.everywhere
        more = f" and {len(verdict.slots) - 1} more" if len(verdict.slots) > 1 else ""
        where = f" ({verdict.slots[0]}{more})" if some else ""
        note(f"{ENGINES[verdict.engine]} {verdict.level}{reasons}{where}")


def size(nbytes: int) -> str:
    """A number of bytes for people."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"
