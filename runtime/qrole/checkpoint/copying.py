"""Copying ranges of bytes between open files, in the kernel where it can."""

from __future__ import annotations

import errno
import os

from qrole.checkpoint.memory import UnusableSourceError

__all__ = ["copy_range"]

_PORTION = 8 << 20
_NOT_HERE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


def copy_range(source: int, start: int, target: int, at: int, nbytes: int) -> None:
    """Copies `nbytes` bytes from `start` in one open file to `at` in another.

    Raises:
        UnusableSourceError: The source is shorter than that.
        OSError: Reading or writing failed.
    """
    done = _in_kernel(source, start, target, at, nbytes)
    while done < nbytes:
        portion = os.pread(source, min(_PORTION, nbytes - done), start + done)
        if not portion:
            raise UnusableSourceError(
                f"a source file ends {nbytes - done} bytes early",
                expected="a source that stays as it is until the run ends",
                hint="let its writer finish, then run again; nothing was published",
            )
        done += os.pwrite(target, portion, at + done)


def _in_kernel(source: int, start: int, target: int, at: int, nbytes: int) -> int:
    """How many bytes `copy_file_range` took; 0 where there is no such call for these files."""
    done = 0
    call = getattr(os, "copy_file_range", None)
    try:
        while call and done < nbytes:
            moved = call(source, target, nbytes - done, start + done, at + done)
            if not moved:
                break
            done += moved
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    return done
