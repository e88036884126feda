"""`import transformer_engine` on machines where TransformerEngine is not installed.

Model and factory files that were written for it run unchanged: its names, by every path that
examples and documentation use, are qrole's own classes. An installed TransformerEngine is never
shadowed. The environment variable QROLE_NO_TE_SHIM=1 (`--no-te-shim`) turns the shim off.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator

from qrole.te_shim.finder import OlderNameWarning, ShimFinder, ShimModule

__all__ = [
    "OlderNameWarning",
    "ShimFinder",
    "activate",
    "install",
    "is_installed",
    "te_shim",
    "uninstall",
]

OFF = "QROLE_NO_TE_SHIM"


def is_installed() -> bool:
    """Whether the shim serves imports now."""
    return any(isinstance(finder, ShimFinder) for finder in sys.meta_path)


def install() -> bool:
    """Serves imports of `transformer_engine` from now on, unless there is a real one.

    Returns:
        Whether the shim serves imports now.
    """
    if is_installed():
        return True
    if "transformer_engine" in sys.modules or importlib.util.find_spec("transformer_engine"):
        return False
    sys.meta_path.append(ShimFinder())
    return True


def activate() -> bool:
    """`install`, unless the user turned the shim off; called before user code runs."""
    return os.environ.get(OFF) != "1" and install()


def uninstall() -> None:
    """Serves no more imports and forgets the modules that were served."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, ShimFinder)]
    for name in [name for name, module in sys.modules.items() if isinstance(module, ShimModule)]:
        del sys.modules[name]


@contextlib.contextmanager
def te_shim() -> Iterator[bool]:
    """The shim inside of a `with` block; yields whether it serves imports there."""
    before = is_installed()
    try:
        yield install()
    finally:
        if not before:
            uninstall()
