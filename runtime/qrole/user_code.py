"""Running the user's own Python files: factories, models, plugins."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from qrole import te_shim
from qrole.errors import QroleError, UnknownNameError, UsageError, UserCodeError

__all__ = ["load_attribute", "load_file", "running_user_code", "user_traceback"]

_QROLE = f"{Path(__file__).resolve().parent}{os.sep}"


def user_traceback(error: BaseException, file: str | None) -> str:
    """The traceback from the user's first frame on, without qrole's own frames.

    Args:
        error: The exception as it was caught.
        file: The user's file; None, or one without a frame, keeps the last frame only.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_ours(f.filename)]
    first = next((i for i, f in enumerate(frames) if file and f.filename == file), len(frames) - 1)
    lines = traceback.format_list(frames[max(first, 0) :])
    lines += traceback.format_exception_only(type(error), error)
    return "".join(lines).rstrip()


def _is_ours(file: str) -> bool:
    """Whether a frame's file is qrole's or the machinery of imports."""
    return file.startswith((_QROLE, "<frozen importlib"))


@contextlib.contextmanager
def running_user_code(
    what: str,
    file: str | None,
    *,
    expected: str = "a file that runs without an exception",
    hint: str = "the traceback names the line in your file",
) -> Iterator[None]:
    """Maps whatever the user's code raises to UserCodeError; qrole's own errors pass.

    Where TransformerEngine is not installed, the code can import it from here on; functions import
    late, so that it stays importable.

    Args:
        what: What was being run, for the message, such as `model.py` or `build() of model.py`.
        file: The user's file, for the traceback.
        expected: What would not have raised.
        hint: What to do.
    """
    te_shim.activate()
    try:
        yield
    except (QroleError, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise UserCodeError(
            f"{what} called sys.exit({error.code!r})",
            expected="a file that can be imported without ending the process",
            hint="put the script part under `if __name__ == '__main__':`",
        ) from error
    except Exception as error:
        raise UserCodeError(
            f"{what} raised {type(error).__name__}: {error}",
            traceback=user_traceback(error, file),
            expected=expected,
            hint=hint,
        ) from error


def load_file(path: Path) -> ModuleType:
    """Imports a Python file under its own name, once per path.

    Its directory is importable while it runs and afterwards, as for a script.

    Raises:
        UsageError: The file is missing or is no Python file.
        UserCodeError: It raised.
    """
    if not path.is_file():
        raise UsageError(
            f"there is no file {str(path)!r}",
            expected="the path of a Python file",
            hint="check the path; it is taken relative to the current directory",
        )
    resolved = path.resolve()
    name = f"qrole_user_{resolved.stem}_{zlib.crc32(os.fsencode(resolved)):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise UsageError(
            f"{str(path)!r} is no Python file", expected="a file that ends in .py", hint="rename it"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(resolved.parent) not in sys.path:
        sys.path.insert(0, str(resolved.parent))
    try:
        with running_user_code(str(path), str(resolved)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def load_attribute(spec: str) -> object:
    """The object named `pkg.mod:attr`, `pkg.mod.attr`, or `file.py:attr`; `attr` may be dotted.

    Raises:
        UsageError: The form is wrong, or the module does not exist.
        UnknownNameError: The module has no such attribute; the nearest are named.
        UserCodeError: Importing it raised.
    """
    where, colon, attr = spec.rpartition(":")
    if not colon:
        where, _, attr = spec.rpartition(".")
    if not where or not attr:
        raise UsageError(
            f"{spec!r} names no object",
            expected="pkg.mod:attr, pkg.mod.attr or file.py:attr",
            hint="add the attribute's name after a colon",
        )
    module = load_file(Path(where)) if where.endswith(".py") else _import_module(where, spec)
    found: object = module
    for part in attr.split("."):
        if not hasattr(found, part):
            known = [name for name in dir(found) if not name.startswith("_")]
            raise UnknownNameError("attribute", part, known, where=where)
        found = getattr(found, part)
    return found


def _import_module(name: str, spec: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with running_user_code(f"import of {name}", None):
            return importlib.import_module(name)
    except UserCodeError as error:
        cause = error.__cause__
        missing = isinstance(cause, ModuleNotFoundError) and cause.name is not None
        if missing and (name == cause.name or name.startswith(f"{cause.name}.")):  # type: ignore[union-attr]
            raise UsageError(
                f"there is no module {cause.name!r} to import for {spec!r}",  # type: ignore[union-attr]
                expected="an importable module, or a path that ends in .py",
                hint="install the package, or run from the directory that holds it",
            ) from cause
        raise
