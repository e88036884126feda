"""What an unfinished run has done already: one line per unit, appended by each process.

A line counts only when it is whole, so a process may die at any moment. Places in the output are
fixed beforehand, so a unit that was half written is simply written again.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Journal", "Record", "read_journals", "this_machine"]


class Journal:
    """One process's record of finished units, opened for appending.

    Args:
        path: The file; lines of an earlier run stay.
        identity: Hash of everything that the bytes depend on.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        new = os.fstat(self._fd).st_size == 0
        # A torn last line of a killed process must not swallow the next one.
        os.write(self._fd, b"" if new else b"\n")
        self._append({"job": identity, "machine": this_machine()})

    def done(self, unit: str, amaxes: Mapping[str, float]) -> None:
        """Records a finished unit with the amax of each of its layers."""
        self._append({"unit": unit, "amax": dict(amaxes)})

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)

    def _append(self, record: Mapping[str, object]) -> None:
        os.write(self._fd, json.dumps(record).encode() + b"\n")


@dataclass(frozen=True)
class Record:
    """What the journals of a job say.

    Attributes:
        done: The amaxes of the layers of every finished unit, by unit.
        doubted: Units that were finished on a machine that is not there to answer for them.
    """

    done: dict[str, dict[str, float]] = field(default_factory=dict)
    doubted: frozenset[str] = frozenset()


def read_journals(directory: Path, identity: str, machines: Collection[str]) -> Record | None:
    """What an earlier run of the same job has done.

    A machine's lines count while it has been up ever since: what was in the memory of one that
    went down may not have come to the disk, although the line did.

    Args:
        directory: Holds `journal-*.jsonl`.
        identity: The job that is about to run.
        machines: `this_machine()` of every process that takes part.

    Returns:
        None where a journal belongs to another job.
    """
    done: dict[str, dict[str, float]] = {}
    doubted: set[str] = set()
    for path in sorted(directory.glob("journal-*.jsonl")):
        machine = None
        for record in map(_parse, path.read_bytes().split(b"\n")):
            if record.get("job", identity) != identity:
                return None
            machine = record.get("machine", machine)
            unit, amaxes = record.get("unit"), record.get("amax")
            if not isinstance(unit, str) or not isinstance(amaxes, dict):
                continue
            if machine in machines:
                done[unit] = amaxes
            else:
                doubted.add(unit)
    return Record(done, frozenset(doubted - done.keys()))


def this_machine() -> str:
    """This machine since it was started; its name where the system does not tell starts apart."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.is_file() else platform.node()


def _parse(line: bytes) -> dict[str, object]:
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
