"""The hidden folder in which an output grows, and the moment at which it becomes visible.

Beside the output `DIR` stands `.DIR.qrole/`: `out/` becomes `DIR` by one rename when everything in
it is complete; `journal-*.jsonl` say what is done; `lock` is held by the running job.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from qrole.checkpoint.journal import Journal, Record, read_journals
from qrole.checkpoint.shards import Shard
from qrole.errors import CheckpointError, OutputExistsError

__all__ = ["Staging", "check_output", "writing"]


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Maps what the system refuses to CheckpointError, and says what to do about it."""
    try:
        yield
    except OSError as error:
        hints = {
            errno.ENOSPC: "free some space and run again",
            errno.EDQUOT: "free some of your quota and run again",
            errno.EFBIG: "raise the limit on file sizes (ulimit -f) and run again",
            errno.EACCES: "choose another output, or change its permissions",
            errno.EPERM: "choose another output, or change its permissions",
            errno.EROFS: "choose an output on a writable file system",
        }
        raise CheckpointError(
            f"{error.filename or path} cannot be written: {error.strerror or error}",
            expected="a writable output with room for the checkpoint",
            hint=hints.get(error.errno or 0, "check the disk, then run again"),
        ) from error


def check_output(final: Path, source: Path | None, force: bool) -> None:
    """Refuses outputs that exist, and those that are the source.

    Raises:
        OutputExistsError: Something is there; nothing was touched.
    """
    if source is not None and final.resolve() == source.resolve():
        raise OutputExistsError(
            f"{final} is the source itself",
            expected="an output beside the source",
            hint="choose another directory with -o",
        )
    if final.is_dir() and not any(final.iterdir()):
        return
    if final.is_symlink() or (final.exists() and not (force and final.is_dir())):
        raise OutputExistsError(
            f"{final} exists",
            expected="a directory that does not exist yet",
            hint="choose another one, or replace it with --force"
            if final.is_dir()
            else "choose another one",
        )


class Staging:
    """The work folder of one output.

    Attributes:
        final: Where the output appears.
        work: The hidden folder.
        out: The output as it grows.
    """

    def __init__(self, final: Path) -> None:
        self.final = final
        self.work = final.parent / f".{final.name}.qrole"
        self.out = self.work / "out"
        self._lock: int | None = None

    def lock(self) -> None:
        """Makes the folder and takes its lock.

        Raises:
            OutputExistsError: Another run holds it.
            CheckpointError: The folder cannot be made.
        """
        with writing(self.work):
            self.out.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.work / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            held = self._take(self._lock)
        except BaseException:
            self._drop()
            raise
        if not held:
            self._drop()
            raise OutputExistsError(
                f"another run is writing {self.final}",
                expected="one run per output",
                hint="wait for it, or choose another output",
            )

    def _take(self, lock: int) -> bool:
        """Whether the lock is ours now; on a shared file system no other host has it either."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A run that has just published removes the folder and this file with it.
            return os.path.samestat(os.fstat(lock), (self.work / "lock").stat())
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.ENOENT):
                return False
            raise CheckpointError(
                f"{self.work} cannot be locked: {error.strerror}",
                expected="a file system with locks, so that two runs do not write one output",
                hint="choose an output on another file system",
            ) from error

    def _drop(self) -> None:
        assert self._lock is not None, "locked"
        os.close(self._lock)
        self._lock = None

    def prepare(self, identity: str, shards: tuple[Shard, ...], machines: Collection[str]) -> bool:
        """Makes the output's files; clears first what another job left, or what was tampered with.

        Args:
            identity: The job.
            shards: The files.
            machines: `this_machine()` of every process that takes part.

        Returns:
            Whether anything was cleared.
        """
        found = read_journals(self.work, identity, machines)
        if found is None or (found.done and not all(map(self._whole, shards))):
            with writing(self.work):
                for journal in self.work.glob("journal-*.jsonl"):
                    journal.unlink()
                shutil.rmtree(self.out)
                self.out.mkdir()
            self._create(shards)
            return True
        self._create(shards)
        return False

    def record(self, identity: str, machines: Collection[str]) -> Record:
        """What is done of a prepared output."""
        return read_journals(self.work, identity, machines) or Record()

    def _whole(self, shard: Shard) -> bool:
        path = self.out / shard.name
        if not path.is_file() or path.stat().st_size != shard.nbytes:
            return False
        with path.open("rb") as file:
            return file.read(len(shard.header)) == shard.header

    def _create(self, shards: tuple[Shard, ...]) -> None:
        """The files with their size and header; the content of existing ones stays."""
        for shard in shards:
            path = self.out / shard.name
            with writing(path):
                fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
                try:
                    os.ftruncate(fd, shard.nbytes)
                    os.pwrite(fd, shard.header, 0)
                finally:
                    os.close(fd)

    def journal(self, identity: str, rank: int = 0) -> Journal:
        """This process's journal."""
        with writing(self.work):
            return Journal(self.work / f"journal-{rank}.jsonl", identity)

    def write_text(self, name: str, text: str) -> None:
        """Writes a document of the output."""
        path = self.out / name
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def publish(self, *, force: bool = False, fsync: bool = False) -> None:
        """Gives the output its name; the last thing that a run does.

        Args:
            force: Replace what has that name.
            fsync: Wait for the disk first.

        Raises:
            OutputExistsError: The name was taken meanwhile; what was done is kept.
        """
        check_output(self.final, None, force)
        with writing(self.final):
            if fsync:
                _sync(self.out)
            if self.final.exists() and any(self.final.iterdir()):
                shutil.rmtree(self.work / "replaced", ignore_errors=True)
                self.final.rename(self.work / "replaced")
            self.out.rename(self.final)
            if fsync:
                _sync_one(self.final.parent)
            shutil.rmtree(self.work)

    def release(self, *, discard: bool = False) -> bool:
        """Lets go of the lock; an unfinished output stays for the next run, an empty one goes.

        Args:
            discard: No run can go on with what is there, so that it goes too.

        Returns:
            Whether something stays that the next run goes on with.
        """
        if self._lock is None:
            return False
        begun = any(self.work.glob("journal-*.jsonl")) or any(self.work.glob("*.json"))
        kept = (self.work / "replaced").exists() or (begun and not discard)
        if self.work.is_dir() and not kept:
            shutil.rmtree(self.work, ignore_errors=True)
        self._drop()
        return kept


def _sync(directory: Path) -> None:
    for path in [*directory.rglob("*"), directory]:
        _sync_one(path)


def _sync_one(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
