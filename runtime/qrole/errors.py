"""The exceptions of qrole.

Every error says three things: what was given, what was expected, and what to do next.

::

    QroleError                     exit code 3, never raised itself
    |-- UsageError                 2  an argument, option or configuration is wrong
    |   |-- UnknownNameError       2  a name that does not exist; lists the nearest ones
    |   |-- OutputExistsError      2  would overwrite; nothing was touched
    |   `-- MissingExtraError      2  an optional package is needed and not installed
    |-- UserCodeError              2  the user's own Python file raised; carries its traceback
    |-- ConfigError (ValueError)   2  a recipe, quantizer, role or module is built wrongly
    |-- OperandError (TypeError)   2  an object of a kind that cannot stand in this place
    |-- FactoryError (ValueError)  2  a factory raised, returned None, or returned no quantizer
    |-- NothingMatchedError        5  a command that had nothing to work on
    |-- CheckpointError            4  a file is missing, truncated, corrupt or not writable
    `-- InterruptedRunError      130  stopped by the user; can be resumed
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

__all__ = [
    "CheckpointError",
    "ConfigError",
    "FactoryError",
    "InterruptedRunError",
    "MissingExtraError",
    "NothingMatchedError",
    "OperandError",
    "OutputExistsError",
    "QroleError",
    "UnknownNameError",
    "UsageError",
    "UserCodeError",
]


class QroleError(Exception):
    """Root of the tree.

    Args:
        given: What was given, in one sentence.
        expected: What was expected instead.
        hint: What to do next.

    Attributes:
        exit_code: What the command line exits with when the error reaches it.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, given: str, *, expected: str = "", hint: str = "") -> None:
        super().__init__(given)
        self.given = given
        self.expected = expected
        self.hint = hint

    def __str__(self) -> str:
        parts = [self.given]
        if self.expected:
            parts.append(f"expected: {self.expected}")
        if self.hint:
            parts.append(f"to do: {self.hint}")
        return "\n".join(parts)


class UsageError(QroleError):
    """An argument, an option or a configuration file is wrong."""

    exit_code = 2


class UnknownNameError(UsageError):
    """A name that does not exist, with the nearest names that do.

    Args:
        kind: What it would be the name of.
        name: The name.
        known: Those that exist.
        where: What should hold it, where that is not plain.
        hint: What else to do.
    """

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, where: str = "", hint: str = ""
    ) -> None:
        names = sorted(set(known))
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        expected = f"one of {', '.join(names[:20])}" if names else f"a known {kind}"
        if len(names) > 20:
            expected += f" and {len(names) - 20} more"
        suggestion = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
        super().__init__(
            f"there is no {kind} {name!r}{f' in {where}' if where else ''}",
            expected=expected,
            hint=" ".join(part for part in (suggestion, hint) if part) or "check the spelling",
        )
        self.nearest = tuple(near)


class OutputExistsError(UsageError):
    """The output already exists and would have been overwritten; nothing was touched."""


class MissingExtraError(UsageError):
    """An optional package is needed and is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed",
            expected=f"qrole installed with its extra {extra!r}",
            hint=f"pip install 'qrole[{extra}]'",
        )


class UserCodeError(QroleError):
    """The user's own Python file raised.

    Attributes:
        traceback: The traceback from the user's first frame on, as text.
    """

    exit_code = 2

    def __init__(
        self, given: str, *, traceback: str = "", expected: str = "", hint: str = ""
    ) -> None:
        super().__init__(given, expected=expected, hint=hint)
        self.traceback = traceback


class ConfigError(QroleError, ValueError):
    """A recipe, a quantizer, a role or a module is given a value it cannot take."""

    exit_code = 2


class OperandError(QroleError, TypeError):
    """An object of a kind that cannot stand in this place."""

    exit_code = 2


class FactoryError(QroleError, ValueError):
    """A factory raised, returned None, or returned something that is no quantizer.

    Attributes:
        traceback: The traceback from the factory's first frame on, empty where nothing was raised.
        fault: `raised`, `none` or `type`.
        returned: What was returned instead of a quantizer, in words; `""` for the other faults.
    """

    exit_code = 2

    def __init__(
        self,
        given: str,
        *,
        traceback: str = "",
        fault: str = "raised",
        returned: str = "",
        expected: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(given, expected=expected, hint=hint)
        self.traceback = traceback
        self.fault = fault
        self.returned = returned


class NothingMatchedError(QroleError):
    """A command that found nothing to work on; never reported as a success."""

    exit_code = 5


class CheckpointError(QroleError):
    """A file is missing, truncated, corrupt, or cannot be written."""

    exit_code = 4


class InterruptedRunError(QroleError):
    """The user stopped the run; what was done is kept and the next run resumes."""

    exit_code = 130
