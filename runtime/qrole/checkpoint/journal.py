"""What an unfinished run has done already: one line per unit, appended by each process.

A line counts only when it is whole, so a process may die at any moment. Places in the output are
fixed beforehand, so a unit that was half written is simply written again.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Journal", "read_journals"]


class Journal:
    """One process's record of finished units, opened for appending.

    Args:
        path: The file; begun with the job's identity when it is new.
        identity: Hash of everything that the bytes depend on.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        new = os.fstat(self._fd).st_size == 0
        # A torn last line of a killed process must not swallow the next one.
        os.write(self._fd, b"" if new else b"\n")
        if new:
            self._append({"job": identity, **_machine()})

    def done(self, unit: str, amaxes: Mapping[str, float]) -> None:
        """Records a finished unit with the amax of each of its layers."""
        self._append({"unit": unit, "amax": dict(amaxes)})

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)

    def _append(self, record: Mapping[str, object]) -> None:
        os.write(self._fd, json.dumps(record).encode() + b"\n")


def read_journals(directory: Path, identity: str) -> dict[str, dict[str, float]] | None:
    """The amaxes of all finished units, by unit.

    Args:
        directory: Holds `journal-*.jsonl`.
        identity: The job that is about to run.

    Returns:
        None where a journal belongs to another job, or to this machine before it was restarted:
        what was in its memory may not have come to the disk.
    """
    done: dict[str, dict[str, float]] = {}
    for path in sorted(directory.glob("journal-*.jsonl")):
        records = [record for line in path.read_bytes().split(b"\n") if (record := _parse(line))]
        if not path.stat().st_size:
            continue
        if not records or records[0].get("job") != identity or _restarted(records[0]):
            return None
        for record in records[1:]:
            unit, amaxes = record.get("unit"), record.get("amax")
            if isinstance(unit, str) and isinstance(amaxes, dict):
                done[unit] = amaxes
    return done


def _machine() -> dict[str, str]:
    """This host, and its current uptime's id where the system has one."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return {"host": platform.node(), "boot": boot.read_text().strip() if boot.is_file() else ""}


def _restarted(head: Mapping[str, object]) -> bool:
    now = _machine()
    return head.get("host") == now["host"] and head.get("boot") != now["boot"]


def _parse(line: bytes) -> dict[str, object]:
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
