"""The codes of the audit: each is one function, registered once, and its docstring documents it.

A check takes a subject and yields hits. The first line of its docstring is the code's meaning, the
rest its explanation; `qrole explain` and the documentation print nothing else.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from qrole.errors import UnknownNameError

__all__ = ["Code", "Hit", "Severity", "check", "codes", "documentation", "find_code"]

_FAMILIES = (
    "settings_use",
    "roles",
    "factory",
    "source",
    "rules",
    "pairing",
    "elements",
    "hardware",
    "export",
    "weights",
    "declared",
    "declared_tensors",
    "engines",
)

#: What the hundreds digit of a code stands for.
FAMILY_NAMES = {
    "0": "settings",
    "1": "roles",
    "2": "factory",
    "3": "GEMM pairing",
    "4": "shapes and hardware",
    "5": "model and export",
}


class Severity(StrEnum):
    """How bad a finding is; notes never fail a run."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Hit:
    """One place where a check found something.

    Attributes:
        where: What it is about: a slot id, a module, a tensor, a rule, `file:line`.
        message: What is wrong there; equal for equal facts, so that equal hits can be folded.
        to_do: What to do about it.
        module: Path of the module, for settings that are bound to modules; `""` for none.
        file: Source file that the user would change; None where none is known.
        line: Line in it, 1-based.
        detail: What differs between places of which the message says the same; `""` for nothing.
    """

    where: str
    message: str
    to_do: str
    module: str = ""
    file: str | None = None
    line: int | None = None
    detail: str = ""

    @property
    def text(self) -> str:
        """The message with its detail, for a finding that stands alone."""
        return f"{self.message}: {self.detail}" if self.detail else self.message


@dataclass(frozen=True)
class Code:
    """One kind of finding.

    Invariants: `name` is `QR` and three digits; summary and explanation are not empty.

    Attributes:
        name: Such as `QR304`.
        severity: Of every finding of this code.
        summary: Its meaning in one line.
        explanation: What it means, why it matters, what to do.
        subject: Name of the type that the check takes.
        check: Yields the hits.
    """

    name: str
    severity: Severity
    summary: str
    explanation: str
    subject: str
    check: Callable[[Any], Iterable[Hit]]

    def __post_init__(self) -> None:
        assert re.fullmatch(r"QR\d{3}", self.name), "QR and three digits"
        assert self.summary, "a summary"
        assert self.explanation, "an explanation"

    @property
    def family(self) -> str:
        """What the code is about, such as `GEMM pairing`."""
        return FAMILY_NAMES[self.name[2]]


_codes: dict[str, Code] = {}

S = TypeVar("S")
_Check = Callable[[S], Iterable[Hit]]


def check(name: str, severity: Severity) -> Callable[[_Check[S]], _Check[S]]:
    """Registers a function as the check of a code.

    The type that its parameter is annotated with says what it is given.
    """

    def register(function: _Check[S]) -> _Check[S]:
        assert name not in _codes, f"{name} is registered once"
        summary, _, explanation = (inspect.getdoc(function) or "").partition("\n")
        (parameter,) = inspect.signature(function).parameters.values()
        subject = str(parameter.annotation)
        _codes[name] = Code(
            name, severity, summary.rstrip("."), explanation.strip(), subject, function
        )
        return function

    return register


def codes() -> dict[str, Code]:
    """Every code, by name, in order."""
    for family in _FAMILIES:
        importlib.import_module(f"qrole.auditing.{family}")
    return dict(sorted(_codes.items()))


def find_code(name: str) -> Code:
    """The code of a name, in any case.

    Raises:
        UnknownNameError: There is none.
    """
    known = codes()
    if name.upper() not in known:
        raise UnknownNameError(
            "code", name, known, hint="`qrole explain` without a code lists all of them"
        )
    return known[name.upper()]


def documentation() -> str:
    """All codes as one Markdown page."""
    lines = ["# Audit codes", ""]
    for digit, family in FAMILY_NAMES.items():
        found = [code for code in codes().values() if code.name[2] == digit]
        lines += [f"## QR{digit}xx: {family}", "", "| code | severity | meaning |", "|---|---|---|"]
        lines += [f"| [{c.name}](#{c.name.lower()}) | {c.severity} | {c.summary} |" for c in found]
        lines.append("")
        for code in found:
            lines += [f"### {code.name}", "", f"{code.summary} ({code.severity}).", ""]
            lines += [code.explanation, ""]
    return "\n".join(lines).rstrip() + "\n"
