"""Compiled kernels on disk: one file per kernel variant, under the user's cache directory.

The name of a file carries the hash of everything that the code depends on, and its content the hash
of the code: another version, another processor, a torn write or a damaged file means compiling
again. Writers fill a file of their own and rename it, so processes may race. Nothing fails for want
of a writable disk.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from pathlib import Path

_DIGEST = 32
# Path.home() raises RuntimeError for a user without a home.
_UNAVAILABLE = (OSError, RuntimeError)


def directory() -> Path:
    """`$QROLE_CACHE_DIR`, else `qrole` in the user's cache directory."""
    if chosen := os.environ.get("QROLE_CACHE_DIR"):
        return Path(chosen) / "kernels"
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "qrole" / "kernels"
    return Path.home() / ".cache" / "qrole" / "kernels"


@functools.cache
def _sources_digest() -> bytes:
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for source in sorted([*here.glob("*.py"), here.with_name("formats.py")]):
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
    except _UNAVAILABLE:
        return None
    digest, code = content[:_DIGEST], content[_DIGEST:]
    return code if code and hashlib.sha256(code).digest() == digest else None


def write(name: str, identity: str, code: bytes) -> None:
    """Keep the object file, where the disk lets us."""
    try:
        destination = path(name, identity)
        destination.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=destination.parent, delete=False) as file:
            file.write(hashlib.sha256(code).digest() + code)
    except _UNAVAILABLE:
        return
    try:
        Path(file.name).replace(destination)
    except OSError:
        Path(file.name).unlink(missing_ok=True)
