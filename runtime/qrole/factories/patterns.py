"""Patterns of a rules file: on names (globs and regular expressions) and on shapes."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from qrole.errors import ConfigError

__all__ = ["NamePattern", "ShapePattern"]


@dataclass(frozen=True)
class NamePattern:
    """Matches a whole name, by a glob or, after `re:`, by a regular expression.

    In a glob `*` stands for any characters, dots included, `?` for one, `[...]` for one of a set.

    Attributes:
        text: As it was written.
    """

    text: str
    _compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        regular = self.text.startswith("re:")
        source = self.text[3:] if regular else fnmatch.translate(self.text)
        try:
            compiled = re.compile(source)
        except re.error as error:
            raise ConfigError(
                f"{self.text!r} is no regular expression: {error}",
                expected="a Python regular expression after 're:'",
                hint="drop 're:' to write a glob such as 'layers.*.mlp.*'",
            ) from error
        object.__setattr__(self, "_compiled", compiled)

    def matches(self, name: str) -> bool:
        """Whether the whole name matches; upper and lower case differ."""
        return self._compiled.fullmatch(name) is not None


_DIMENSION = re.compile(r"(?P<relation>>=|<=|%|!%)\s*(?P<number>[1-9]\d*)")


@dataclass(frozen=True)
class ShapePattern:
    """Matches a shape, dimension by dimension.

    Each dimension is a number, `*`, `>=N`, `<=N`, `%N` (a multiple of N) or `!%N` (none).

    Attributes:
        dimensions: One per dimension of the shape.
    """

    dimensions: tuple[int | str, ...]

    def __post_init__(self) -> None:
        for dimension in self.dimensions:
            number = isinstance(dimension, int) and not isinstance(dimension, bool)
            if number or dimension == "*":
                continue
            if not isinstance(dimension, str) or not _DIMENSION.fullmatch(dimension):
                raise ConfigError(
                    f"{dimension!r} is no pattern for a dimension",
                    expected="a number, '*', '>=N', '<=N', '%N' or '!%N'",
                    hint="shape = ['*', '%32'] matches matrices whose last dimension is a "
                    "multiple of 32",
                )

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.dimensions))}]"

    def matches(self, shape: Sequence[int]) -> bool:
        """Whether the shape has as many dimensions and each of them matches."""
        if len(shape) != len(self.dimensions):
            return False
        return all(_holds(d, n) for d, n in zip(self.dimensions, shape, strict=True))


def _holds(dimension: int | str, size: int) -> bool:
    if isinstance(dimension, int):
        return size == dimension
    found = _DIMENSION.fullmatch(dimension)
    if found is None:
        return True
    number = int(found["number"])
    return {
        ">=": size >= number,
        "<=": size <= number,
        "%": size % number == 0,
        "!%": size % number != 0,
    }[found["relation"]]
