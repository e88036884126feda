"""Compiled kernels on disk: one file per kernel variant, under the user's cache directory.

A file is read only when its name carries the hash of everything that the code depends on and its content carries its
own hash, so another version, another processor, a torn write or a damaged file is simply compiled again. Writers make
a file of their own and rename it, so processes may race. Nothing here fails for want of a writable disk.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import tempfile
from pathlib import Path

_DIGEST = 32


def directory() -> Path:
    """`$QROLE_CACHE_DIR`, else `qrole` in the user's cache directory."""
    if chosen := os.environ.get("QROLE_CACHE_DIR"):
        return Path(chosen) / "kernels"
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "qrole" / "kernels"
    if sys.platform == "win32" and (base := os.environ.get("LOCALAPPDATA")):
        return Path(base) / "qrole" / "kernels"
    return Path.home() / ".cache" / "qrole" / "kernels"


@functools.cache
def _sources_digest() -> bytes:
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.digest()


def path(name: str, identity: str) -> Path:
    """Where the kernel `name` is kept, compiled under the conditions that `identity` spells out."""
    digest = hashlib.sha256(_sources_digest() + identity.encode()).hexdigest()[:24]
    return directory() / digest / f"{name}.o"


def read(name: str, identity: str) -> bytes | None:
    """The object file, or None where there is none or it is damaged."""
    try:
        content = path(name, identity).read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST], content[_DIGEST:]
    return code if code and hashlib.sha256(code).digest() == digest else None


def write(name: str, identity: str, code: bytes) -> None:
    """Keeps the object file, where the disk lets us."""
    destination = path(name, identity)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=destination.parent, suffix=".part")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        Path(temporary).replace(destination)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
