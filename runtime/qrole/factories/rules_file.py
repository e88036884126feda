"""Reading a rules file; `rules.schema.json` beside this file describes it for editors."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qrole.errors import ConfigError, QroleError, UnknownNameError, UsageError
from qrole.factories.named import named_quantizer
from qrole.factories.patterns import NamePattern, ShapePattern
from qrole.factories.rules import Expected, Rule, RulesFactory
from qrole.plugins import Factory, load_factory
from qrole.roles import QuantizerRole

__all__ = ["load_rules"]

_NAME_KEYS = ("module", "name", "class", "module_type", "tensor_type", "direction")
_RULE_KEYS = (*_NAME_KEYS, "shape", "quantizer", "options", "factory", "expect", "reason", "label")
_TOP_KEYS = ("version", "description", "default", "rule")
_SCHEMA = "rules.schema.json in qrole.factories describes the file"


def load_rules(path: Path) -> Factory:
    """The factory that a rules file describes.

    Raises:
        UsageError: The file is missing, is no TOML, or breaks the rules of `rules.schema.json`.
    """
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8")
        content = tomllib.loads(text)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}",
            expected="a rules file in TOML",
            hint="check the path; it is taken relative to the current directory",
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(
            f"{path} is no TOML: {error}", expected="a rules file in TOML", hint="fix that line"
        ) from error
    factory = _Parser(path, text, content).parse()
    digest = hashlib.sha256(raw).hexdigest()
    doc = str(content.get("description", ""))
    return Factory(factory, str(path), str(path), str(path), None, digest, doc)


@dataclass(frozen=True)
class _Parser:
    path: Path
    text: str
    content: dict[str, Any]

    def parse(self) -> RulesFactory:
        self._check_keys(self.content, _TOP_KEYS, "rules file", str(self.path))
        if self.content.get("version", 1) != 1:
            raise self._wrong(
                str(self.path), f"version is {self.content['version']!r}", "version = 1"
            )
        if not isinstance(self.content.get("description", ""), str):
            raise self._wrong(str(self.path), "description is no string", "a string")
        entries = self.content.get("rule")
        if not isinstance(entries, list) or not entries:
            raise self._wrong(str(self.path), "there is no [[rule]]", "at least one [[rule]]")
        lines = self._lines(len(entries))
        rules = tuple(
            self._rule(i, line, entry)
            for i, (line, entry) in enumerate(zip(lines, entries, strict=True), 1)
        )
        default = self.content.get("default")
        where = f"{self.path}: default"
        function = None if default is None else self._factory(default, where)
        return RulesFactory(str(self.path), rules, function, str(default or ""))

    def _lines(self, count: int) -> Sequence[int | None]:
        header = re.compile(r"\s*\[\[\s*rule\s*\]\]")
        found = [i for i, line in enumerate(self.text.splitlines(), 1) if header.match(line)]
        return found if len(found) == count else [None] * count

    def _rule(self, index: int, line: int | None, entry: Any) -> Rule:
        where = f"{self.path}:{line}: rule {index}" if line else f"{self.path}: rule {index}"
        if not isinstance(entry, dict):
            raise self._wrong(where, f"it is {entry!r}", "a table")
        self._check_keys(entry, _RULE_KEYS, "rule", where)
        try:
            names = {
                key: tuple(NamePattern(text) for text in self._texts(entry[key], key, where))
                for key in _NAME_KEYS
                if key in entry
            }
            shape = self._shape(entry["shape"], where) if "shape" in entry else None
            factory, answer = self._answer(entry, where)
        except (ConfigError, UnknownNameError) as error:
            raise UsageError(
                f"{where}: {error.given}", expected=error.expected, hint=error.hint
            ) from error
        texts = {key: self._text(entry.get(key, ""), key, where) for key in ("reason", "label")}
        expected = self._expected(entry["expect"], where) if "expect" in entry else None
        return Rule(index, line, names, shape, answer, factory, expected, **texts)

    def _answer(
        self, entry: dict[str, Any], where: str
    ) -> tuple[Callable[[QuantizerRole | None], Any], str]:
        if ("quantizer" in entry) == ("factory" in entry):
            given = "both quantizer and factory" if "factory" in entry else "neither"
            raise self._wrong(where, f"it gives {given}", "a quantizer or a factory")
        if "factory" in entry:
            if "options" in entry:
                raise self._wrong(where, "options stand beside a factory", "options of a quantizer")
            return self._factory(entry["factory"], where), f"factory {entry['factory']}"
        name = self._text(entry["quantizer"], "quantizer", where)
        options = entry.get("options", {})
        if not isinstance(options, dict):
            raise self._wrong(where, f"options is {options!r}", "a table of constructor keywords")
        build = named_quantizer(name, options)
        shown = ", ".join(f"{key}={value}" for key, value in options.items())
        return (lambda role: build()), f"{name}({shown})"

    def _factory(self, spec: Any, where: str) -> Callable[[QuantizerRole | None], Any]:
        name = self._text(spec, "factory", where)
        if name.endswith(".toml"):
            raise self._wrong(where, f"it names the rules file {name}", "a factory of another kind")
        if ".py:" in name and not Path(name).is_absolute():
            name = str(self.path.parent / name)
        try:
            return load_factory(name).function
        except QroleError as error:
            raise UsageError(
                f"{where}: {error.given}", expected=error.expected, hint=error.hint
            ) from error

    def _texts(self, value: Any, key: str, where: str) -> list[str]:
        values = value if isinstance(value, list) else [value]
        if not values:
            raise self._wrong(where, f"{key} is an empty list", "a pattern, or a list of patterns")
        return [self._text(item, key, where) for item in values]

    def _text(self, value: Any, key: str, where: str) -> str:
        if not isinstance(value, str):
            raise self._wrong(where, f"{key} is {value!r}", "a string")
        return value

    def _shape(self, value: Any, where: str) -> ShapePattern:
        if not isinstance(value, list) or not value:
            raise self._wrong(where, f"shape is {value!r}", "a list with one entry per dimension")
        return ShapePattern(tuple(value))

    def _expected(self, value: Any, where: str) -> Expected:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return Expected(value, value)
        found = re.fullmatch(r"(\d*)\.\.(\d*)", value) if isinstance(value, str) else None
        if found is None or not (found[1] or found[2]):
            raise self._wrong(where, f"expect is {value!r}", "a count, or 'N..', '..N', 'N..M'")
        least = int(found[1] or 0)
        most = int(found[2]) if found[2] else None
        if most is not None and most < least:
            raise self._wrong(where, f"expect is {value!r}", "a range that is not empty")
        return Expected(least, most)

    def _check_keys(
        self, table: dict[str, Any], known: Iterable[str], kind: str, where: str
    ) -> None:
        unknown = next((key for key in table if key not in known), None)
        if unknown is not None:
            error = UnknownNameError(f"{kind} key", unknown, known, hint=_SCHEMA)
            raise UsageError(f"{where}: {error.given}", expected=error.expected, hint=error.hint)

    def _wrong(self, where: str, given: str, expected: str) -> UsageError:
        return UsageError(
            f"{where}: {given}",
            expected=expected,
            hint=_SCHEMA,
        )
