"""The conditions of a Python source file, and which way they went.

A condition is known by the range of source that tests it and the range that runs when it holds.
Which way it went is read off the instructions that ran, by their source positions, so that one-line
`if`s, conditional expressions and `match` are seen as well as blocks. What a comprehension filters
is no branch.
"""

from __future__ import annotations

import ast
import dis
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import NamedTuple

__all__ = [
    "DEFINITIONS",
    "Condition",
    "Located",
    "Point",
    "SourceMap",
    "Span",
    "case_condition",
    "instruction_spans",
    "source_span",
    "source_text",
]

Point = tuple[int, int]


class Span(NamedTuple):
    """A half-open range of source, from `start` to `end`, each `(line, column in bytes)`."""

    start: Point
    end: Point

    def holds(self, point: Point) -> bool:
        """Whether a point lies inside."""
        return self.start <= point < self.end


@dataclass(frozen=True)
class Condition:
    """Something that decides which code runs.

    Attributes:
        line: Line of the test, 1-based.
        text: The test as source text, whitespace collapsed.
        tests: Where it is evaluated.
        body: What runs when it holds.
        inverted: `body` runs when it does not hold (the right side of `or`).
    """

    line: int
    text: str
    tests: tuple[Span, ...]
    body: Span
    inverted: bool = False

    def tested_at(self, point: Point) -> bool:
        """Whether an instruction at `point` takes part in the test."""
        return any(span.holds(point) for span in self.tests)

    def outcome(self, point: Point) -> bool:
        """Which way it went, when `point` ran right after the test."""
        return self.body.holds(point) is not self.inverted


@dataclass(frozen=True)
class SourceMap:
    """One source file: its tree and its conditions.

    Attributes:
        file: Path.
        lines: The source, by line.
        tree: Parsed.
        conditions: In source order.
    """

    file: str
    lines: tuple[str, ...]
    tree: ast.Module
    conditions: tuple[Condition, ...] = field(default=())

    @classmethod
    def read(cls, file: str) -> SourceMap | None:
        """The map of a file; None where it cannot be read or parsed."""
        try:
            source = Path(file).read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (OSError, ValueError, SyntaxError):
            return None
        return cls(file, tuple(source.splitlines()), tree, tuple(_conditions(tree)))

    def line(self, number: int) -> str:
        """A source line without indentation; `""` past the end."""
        return self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""

    def statement(self, number: int) -> str:
        """The innermost simple statement on a line, whitespace collapsed; else the line."""
        return self._statements.get(number) or self.line(number)

    @functools.cached_property
    def _statements(self) -> dict[int, str]:
        found: dict[int, ast.stmt] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.stmt) and not isinstance(node, _COMPOUND):
                for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    if number not in found or found[number].lineno <= node.lineno:
                        found[number] = node
        return {number: source_text(node) for number, node in found.items()}


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPOUND = (*DEFINITIONS, ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)

Located = ast.expr | ast.stmt | ast.pattern


def instruction_spans(code: CodeType) -> tuple[Span | None, ...]:
    """Where the instructions of a code object stand in the source, by offset divided by two.

    None where an instruction stands for no source, and for conditional jumps, whose positions
    differ between Python versions; what runs after them tells which way they went.
    """
    names = [dis.opname[opcode] for opcode in code.co_code[::2]]
    spans: list[Span | None] = []
    for name, (line, end_line, column, end) in zip(names, code.co_positions(), strict=True):
        decides = ("JUMP" in name and "_IF_" in name) or name == "NOT_TAKEN"
        if line is None or end_line is None or column is None or end is None or decides:
            spans.append(None)
        else:
            spans.append(Span((line, column), (end_line, end)))
    return tuple(spans)


def source_span(node: Located) -> Span:
    """Where a node stands."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return Span((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))


def _block_span(body: list[ast.stmt]) -> Span:
    return Span(source_span(body[0]).start, source_span(body[-1]).end)


def source_text(node: ast.AST) -> str:
    """A node as one line of source, shortened."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 160 else f"{text[:157]}..."


def _conditions(tree: ast.Module) -> Iterator[Condition]:
    inside_tests = {id(child) for test in _tests(tree) for child in ast.walk(test)}
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While):
            yield Condition(
                node.lineno,
                source_text(node.test),
                (source_span(node.test),),
                _block_span(node.body),
            )
        elif isinstance(node, ast.IfExp):
            yield Condition(
                node.test.lineno,
                source_text(node.test),
                (source_span(node.test),),
                source_span(node.body),
            )
        elif isinstance(node, ast.Match):
            yield from (case_condition(case) for case in node.cases if not _irrefutable(case))
        elif isinstance(node, ast.BoolOp) and id(node) not in inside_tests:
            first, rest = node.values[0], node.values[1:]
            body = Span(source_span(rest[0]).start, source_span(rest[-1]).end)
            inverted = isinstance(node.op, ast.Or)
            yield _tested(first, body, inverted)


def _tested(test: ast.expr, body: Span, inverted: bool = False) -> Condition:
    return Condition(test.lineno, source_text(test), (source_span(test),), body, inverted)


def _tests(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield node.test
        elif isinstance(node, ast.match_case) and node.guard is not None:
            yield node.guard


def case_condition(case: ast.match_case) -> Condition:
    """The condition that a case of a `match` is."""
    text = f"case {source_text(case.pattern)}"
    tests = [source_span(case.pattern)]
    if case.guard is not None:
        text += f" if {source_text(case.guard)}"
        tests.append(source_span(case.guard))
    return Condition(case.pattern.lineno, text, tuple(tests), _block_span(case.body))


def _irrefutable(case: ast.match_case) -> bool:
    pattern = case.pattern
    return case.guard is None and isinstance(pattern, ast.MatchAs) and pattern.pattern is None
