"""What `qrole --version` prints: the versions that matter in a bug report."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from qrole._version import __version__

__all__ = ["version_lines"]

_PACKAGES = ("torch", "triton", "llvmlite", "safetensors", "transformers", "transformer-engine")


def version_lines() -> list[str]:
    """One line per package; reads metadata only, imports nothing."""
    lines = [f"qrole {__version__}", f"python {platform.python_version()} {platform.platform()}"]
    for package in _PACKAGES:
        try:
            lines.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            lines.append(f"{package} not installed")
    return lines
