"""Memory by address: files mapped read-only, and reused work buffers. No numpy, no torch."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from qrole.errors import CheckpointError

__all__ = ["Buffer", "FileIdentity", "MappedFile", "UnusableSourceError"]

#: Linux 5.14: read pages in and map them; fails with EFAULT where a mapped file has shrunk, where
#: touching the page would kill the process.
_MADV_POPULATE_READ = 22


class _PyBuffer(ctypes.Structure):
    """`Py_buffer` of the stable ABI; only `buf` is read."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


class UnusableSourceError(CheckpointError):
    """The source has to change before it can be quantized; what is done of it is of no use then."""


@dataclass(frozen=True)
class FileIdentity:
    """What tells that a file is still the one that was looked at.

    Attributes:
        path: The file.
        size: Bytes.
        mtime_ns: Time of the last change, ns.
        inode: Number in its file system.
    """

    path: Path
    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileIdentity:
        """The file as it is now."""
        stat = path.stat()
        return cls(path, stat.st_size, stat.st_mtime_ns, stat.st_ino)

    def check(self) -> None:
        """Raises UnusableSourceError where the file is no longer the same."""
        try:
            now = FileIdentity.of(self.path)
        except OSError as error:
            raise self._changed(f"is gone: {error.strerror}") from error
        if now != self:
            raise self._changed("has changed while it was read")

    def _changed(self, what: str) -> UnusableSourceError:
        return UnusableSourceError(
            f"{self.path} {what}",
            expected="a source that stays as it is until the run ends",
            hint="let its writer finish, then run again; nothing was published",
        )


class Buffer:
    """Page-aligned memory of a fixed size, zero at first, reused by its owner."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._map = mmap.mmap(-1, max(nbytes, 1))
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))


class MappedFile:
    """A file mapped read-only, whose pages are taken in and given back range by range."""

    def __init__(self, identity: FileIdentity) -> None:
        self.identity = identity
        self.fd = os.open(identity.path, os.O_RDONLY)
        self._map = mmap.mmap(self.fd, 0, access=mmap.ACCESS_READ)
        held = _PyBuffer()
        get = ctypes.pythonapi.PyObject_GetBuffer
        if get(ctypes.py_object(self._map), ctypes.byref(held), 0):
            raise MemoryError(f"no buffer of {identity.path}")
        self._held = held
        self.address: int = held.buf or 0

    def take(self, start: int, end: int) -> int:
        """Address of byte `start`, with bytes up to `end` in memory.

        Raises:
            CheckpointError: The file is shorter than it was.
        """
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        try:
            self._map.madvise(_MADV_POPULATE_READ, first, end - first)
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: an older kernel, pages come on first touch
                self.identity.check()
                raise CheckpointError(
                    f"{self.identity.path} cannot be read at byte {start}: {error.strerror}",
                    expected="a file on a disk that can be read",
                    hint="check the disk, then run again",
                ) from error
        return self.address + start

    def give_back(self, start: int, end: int) -> None:
        """Drops whole pages of a range from this process; the page cache keeps them."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = end // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def close(self) -> None:
        """Unmaps and closes."""
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self._held))
        self._map.close()
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
