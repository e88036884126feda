"""`[tool.qrole]` in pyproject.toml: what an audit is asked for, project by project."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qrole.auditing.options import AuditOptions, Engine
from qrole.errors import UnknownNameError, UsageError

__all__ = ["load_settings", "parse_engine"]

_Texts = tuple[str, ...]


def load_settings(start: Path | None = None) -> AuditOptions:
    """The settings of the nearest pyproject.toml with a table `[tool.qrole]`.

    Args:
        start: Where to begin; parents follow. Default: the current directory.

    Raises:
        UsageError: The table holds an unknown key or a wrong value.
    """
    folder = (start or Path.cwd()).resolve()
    for candidate in (folder, *folder.parents):
        path = candidate / "pyproject.toml"
        table = _table(path) if path.is_file() else None
        if table is not None:
            return _options(path, table)
    return AuditOptions()


def parse_engine(name: str) -> Engine:
    """The engine of a name.

    Raises:
        UnknownNameError: There is none.
    """
    if name not in set(Engine):
        known = [engine.value for engine in Engine]
        raise UnknownNameError("engine", name, known, hint="engines are lower-case names")
    return Engine(name)


def _table(path: Path) -> dict[str, Any] | None:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}", expected="TOML", hint="fix the file"
        ) from error
    table = content.get("tool", {}).get("qrole")
    return table if isinstance(table, dict) else None


def _options(path: Path, table: Mapping[str, Any]) -> AuditOptions:
    readers: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
        "select": ("select", _texts),
        "ignore": ("ignore", _texts),
        "target": ("target", _text),
        "engine": ("engines", _engines),
        "tensor-parallel": ("tensor_parallel", _number),
        "fp8-dpa": ("fp8_dpa", _flag),
        "sequence-length": ("sequence_length", _number),
        "inference": ("inference", _flag),
        "weights": ("weights", _flag),
        "module-ignore": ("module_ignores", _module_ignores),
    }
    found: dict[str, Any] = {}
    try:
        for key, value in table.items():
            if key not in readers:
                raise UnknownNameError("key of [tool.qrole]", key, readers, hint="see the docs")
            field, read = readers[key]
            found[field] = read(key, value)
        return AuditOptions(**found, settings_file=str(path))
    except UsageError as error:
        raise UsageError(
            f"{path}: {error.given}", expected=error.expected, hint=error.hint
        ) from error


def _wrong(key: str, value: Any, expected: str) -> UsageError:
    return UsageError(f"{key} is {value!r}", expected=expected, hint="correct [tool.qrole]")


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(key, value, "a string")
    return value


def _texts(key: str, value: Any) -> _Texts:
    if not isinstance(value, list):
        raise _wrong(key, value, "a list of strings")
    return tuple(_text(key, item) for item in value)


def _engines(key: str, value: Any) -> tuple[Engine, ...]:
    names = value if isinstance(value, list) else [value]
    return tuple(parse_engine(_text(key, name)) for name in names)


def _number(key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(key, value, "a whole number")
    return value


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(key, value, "true or false")
    return value


def _module_ignores(key: str, value: Any) -> dict[str, _Texts]:
    if not isinstance(value, dict):
        raise _wrong(key, value, 'a table of lists, such as {"lm_head" = ["QR501"]}')
    return {pattern: _texts(key, names) for pattern, names in value.items()}
