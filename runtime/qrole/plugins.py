"""Factories and emitters that packages offer; qrole's own come through the same door."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrole.errors import UnknownNameError, UsageError
from qrole.factories.string_roles import adapt_string_roles
from qrole.user_code import load_attribute, load_file, running_user_code

if TYPE_CHECKING:
    from qrole.emitters.base import Emitter

__all__ = [
    "EMITTERS",
    "FACTORIES",
    "Factory",
    "FactoryEntry",
    "list_factories",
    "load_emitters",
    "load_factory",
]

FACTORIES = "qrole.factories"
EMITTERS = "qrole.emitters"


@dataclass(frozen=True)
class FactoryEntry:
    """One factory that an installed package offers.

    Attributes:
        name: What `--factory` takes.
        target: `module:attribute`.
        package: Distribution that offers it, with its version.
        doc: First paragraph of its docstring; `""` where the source cannot be read.
    """

    name: str
    target: str
    package: str
    doc: str = ""


@dataclass(frozen=True)
class Factory:
    """A factory with its identity.

    Attributes:
        function: Called with one role; returns a quantizer or a request.
        name: How the user named it.
        qualname: Module and qualified name, or the rules file's path.
        file: Source file, None where it is not to be had.
        line: First line of its definition.
        sha256: Hash of its source file; `""` without one.
        doc: First paragraph of its docstring.
    """

    function: Callable[..., Any]
    name: str
    qualname: str
    file: str | None = None
    line: int | None = None
    sha256: str = ""
    doc: str = ""

    @classmethod
    def of(cls, function: Callable[..., Any], name: str | None = None) -> Factory:
        """Wraps any callable: a function, a closure, a partial, an object with `__call__`.

        One that takes string roles, as in older TransformerEngine releases, is adapted.
        """
        inner: Any = function
        while isinstance(inner, functools.partial):
            inner = inner.func
        if not (inspect.isfunction(inner) or inspect.ismethod(inner) or inspect.isclass(inner)):
            inner = type(inner)
        qualname = f"{inner.__module__}.{inner.__qualname__}"
        try:
            file = inspect.getsourcefile(inner)
            line = inspect.getsourcelines(inner)[1]
        except (OSError, TypeError):
            file, line = None, None
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
        doc = (inspect.getdoc(inner) or "").split("\n\n")[0].replace("\n", " ")
        adapted = adapt_string_roles(function)
        return cls(adapted, name or qualname, qualname, file, line, digest, doc)


def _entries(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}


def list_factories() -> list[FactoryEntry]:
    """The factories of all installed packages, by name; imports none of them."""
    found = []
    for name, entry in sorted(_entries(FACTORIES).items()):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"
        found.append(FactoryEntry(name, entry.value, package, _docstring(entry)))
    return found


def _docstring(entry: EntryPoint) -> str:
    """The factory's docstring, read from its source without running the file."""
    try:
        spec = importlib.util.find_spec(entry.module)
        tree = ast.parse(Path(spec.origin).read_bytes()) if spec and spec.origin else None
    except (ImportError, OSError, SyntaxError, ValueError):
        return ""
    for node in tree.body if tree else ():
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == entry.attr:
            return " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    return ""


def load_factory(spec: str) -> Factory:
    """The factory that a name, `pkg.mod:fn`, `pkg.mod.fn`, `file.py:fn` or `rules.toml` means.

    Raises:
        UnknownNameError: No such entry point; the nearest names are given.
        UsageError: The object named is not callable, or there is no such module or file.
        UserCodeError: Importing it raised.
    """
    if spec.endswith(".toml"):
        from qrole.factories.rules_file import load_rules

        return load_rules(Path(spec))
    entries = _entries(FACTORIES)
    if spec in entries:
        with running_user_code(f"entry point {spec}", None):
            found: object = entries[spec].load()
    elif spec.endswith(".py"):
        raise _file_alone(spec)
    elif ":" in spec or "." in spec:
        found = load_attribute(spec)
    else:
        raise UnknownNameError(
            "factory", spec, entries, hint="or name one as pkg.mod:fn, file.py:fn or rules.toml"
        )
    if not callable(found):
        raise UsageError(
            f"{spec} is no factory but an object of type {type(found).__name__}",
            expected="a callable that takes a QuantizerRole and returns a quantizer",
            hint="name a function, or an object with __call__",
        )
    return Factory.of(found, spec)


def _file_alone(spec: str) -> UsageError:
    """What is wrong with a file that is named without a function, and which ones it has."""
    module = load_file(Path(spec))
    own = [n for n, f in vars(module).items() if getattr(f, "__module__", "") == module.__name__]
    return UsageError(
        f"{spec} is a file, and no function in it is named",
        expected=f"{spec}:fn",
        hint=f"name one of {', '.join(own)}" if own else "define a factory in it",
    )


def load_emitters() -> list[Emitter]:
    """One instance of every registered emitter class, highest priority first.

    Raises:
        UserCodeError: A package's emitter cannot be imported or built.
    """
    emitters: list[Emitter] = []
    for name, entry in sorted(_entries(EMITTERS).items()):
        with running_user_code(f"emitter {name} ({entry.value})", None):
            emitters.append(entry.load()())
    return sorted(emitters, key=lambda emitter: -emitter.priority)
