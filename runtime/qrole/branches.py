"""The branches of a Python source file: what decides them, and which were never reached.

A condition is known by the range of source that tests it and the range that runs when it holds.
Which way it went is read off the instructions that ran, by their source positions, so that one-line
`if`s, conditional expressions and `match` are seen as well as blocks. What a comprehension filters
is no branch.
"""

from __future__ import annotations

import ast
import bisect
import dis
import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import NamedTuple

__all__ = ["Condition", "Point", "SourceMap", "Span", "Unreached", "instruction_spans"]

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
class Unreached:
    """Code that never ran although its function did.

    Attributes:
        file: Source file.
        line: First line of the code.
        function: Name of the function that holds it.
        text: First line of the code, without indentation.
        why: The condition and how it always went, in words.
        guard: The condition only asks for roles that are None or have empty fields.
    """

    file: str
    line: int
    function: str
    text: str
    why: str
    guard: bool = False


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
        return {number: _text(node) for number, node in found.items()}

    def unreached(self, ran: Iterable[Span], exists: Iterable[Span]) -> Iterator[Unreached]:
        """Code that never ran, outermost blocks only, in functions that did.

        Args:
            ran: Where the instructions that ran stand.
            exists: Where all instructions of the functions that ran.
        """
        search = _Search(self, sorted(set(ran)), sorted(set(exists)))
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if search.ran_any(node.body):
                    yield from search.block(node.body, node.name, None)
            elif isinstance(node, ast.Lambda) and search.ran(node.body):
                yield from search.expressions(node.body, "lambda")


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPOUND = (*_DEFINITIONS, ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)

_Located = ast.expr | ast.stmt | ast.pattern


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


def _span(node: _Located) -> Span:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return Span((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))


def _block_span(body: list[ast.stmt]) -> Span:
    return Span(_span(body[0]).start, _span(body[-1]).end)


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 160 else f"{text[:157]}..."


def _conditions(tree: ast.Module) -> Iterator[Condition]:
    inside_tests = {id(child) for test in _tests(tree) for child in ast.walk(test)}
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While):
            yield Condition(
                node.lineno, _text(node.test), (_span(node.test),), _block_span(node.body)
            )
        elif isinstance(node, ast.IfExp):
            yield Condition(
                node.test.lineno, _text(node.test), (_span(node.test),), _span(node.body)
            )
        elif isinstance(node, ast.Match):
            yield from (_case(case) for case in node.cases if not _irrefutable(case))
        elif isinstance(node, ast.BoolOp) and id(node) not in inside_tests:
            first, rest = node.values[0], node.values[1:]
            body = Span(_span(rest[0]).start, _span(rest[-1]).end)
            inverted = isinstance(node.op, ast.Or)
            yield Condition(first.lineno, _text(first), (_span(first),), body, inverted)


def _tests(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield node.test
        elif isinstance(node, ast.match_case) and node.guard is not None:
            yield node.guard


def _case(case: ast.match_case) -> Condition:
    text = f"case {_text(case.pattern)}"
    tests = [_span(case.pattern)]
    if case.guard is not None:
        text += f" if {_text(case.guard)}"
        tests.append(_span(case.guard))
    return Condition(case.pattern.lineno, text, tuple(tests), _block_span(case.body))


def _irrefutable(case: ast.match_case) -> bool:
    pattern = case.pattern
    return case.guard is None and isinstance(pattern, ast.MatchAs) and pattern.pattern is None


@dataclass(frozen=True)
class _Search:
    source: SourceMap
    spans: list[Span]
    known: list[Span]

    def ran(self, node: _Located) -> bool:
        return _any_in(self.spans, _span(node))

    def exists(self, node: _Located) -> bool:
        """Whether the compiler made any instruction of it; constants and `pass` may have none."""
        return _any_in(self.known, _span(node))

    def ran_any(self, body: list[ast.stmt]) -> bool:
        return any(self.ran(node) for node in body)

    def block(self, body: list[ast.stmt], function: str, why: _Why | None) -> Iterator[Unreached]:
        """The unreached code of one block that was entered, or the block itself."""
        previous: ast.stmt | None = None
        for i, node in enumerate(body):
            if not self.exists(node) or isinstance(node, _DEFINITIONS):
                continue
            if not self.ran(node):
                why = why if previous is None else _after(previous)
                if why is not None and not _only_raises(body[i:]):
                    yield self._found(node, function, why)
                return
            yield from self._inside(node, function)
            previous = node

    def _inside(self, node: ast.stmt, function: str) -> Iterator[Unreached]:
        for body, why in _children(node):
            yield from self.block(body, function, why)
        for expression in _own_expressions(node):
            yield from self.expressions(expression, function)

    def expressions(self, root: ast.expr, function: str) -> Iterator[Unreached]:
        """Arms of conditional expressions, and right sides of `and` and `or`, that never ran."""
        for node in _walk_expression(root):
            for arm, why in _arms(node):
                if self.exists(arm) and not self.ran(arm) and self.ran(_decides(node)):
                    yield self._found(arm, function, why)

    def _found(self, node: _Located, function: str, why: _Why) -> Unreached:
        text = self.source.line(node.lineno) if isinstance(node, ast.stmt) else _text(node)
        return Unreached(self.source.file, node.lineno, function, text, why.text, why.guard)


@dataclass(frozen=True)
class _Why:
    text: str
    guard: bool = False


def _any_in(spans: list[Span], outer: Span) -> bool:
    """Whether one of the sorted spans lies inside; a return can start where its first part does."""
    at = bisect.bisect_left(spans, (outer.start, outer.start))
    inside = itertools.takewhile(lambda span: span.start < outer.end, spans[at:])
    return any(span.end <= outer.end for span in inside)


def _children(node: ast.stmt) -> Iterator[tuple[list[ast.stmt], _Why | None]]:
    """The blocks inside a statement, with the reason that each would not be entered."""
    if isinstance(node, ast.If | ast.While):
        word = "if" if isinstance(node, ast.If) else "while"
        test = _text(node.test)
        yield node.body, _Why(f"`{word} {test}` was never true", _asks_for_nothing(node.test))
        if node.orelse and isinstance(node, ast.If):
            yield node.orelse, _Why(f"`{word} {test}` was never false")
    elif isinstance(node, ast.For):
        yield node.body, _Why(f"`for ... in {_text(node.iter)}` had nothing to go over")
    elif isinstance(node, ast.Match):
        for case in node.cases:
            yield case.body, _Why(f"`{_case(case).text}` never matched", _matches_nothing(case))
    elif isinstance(node, ast.With):
        yield node.body, None
    elif isinstance(node, ast.Try):
        blocks = [node.body, *(h.body for h in node.handlers), node.orelse, node.finalbody]
        yield from ((block, None) for block in blocks)


def _own_expressions(node: ast.stmt) -> Iterator[ast.expr]:
    """A statement's expressions, tests left out: what they decide is judged by its own blocks."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) and child is not getattr(node, "test", None):
            yield child


def _walk_expression(root: ast.expr) -> Iterator[ast.expr]:
    """Expressions inside `root`; neither tests nor lambdas, which are functions of their own."""
    todo: list[ast.AST] = [root]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.expr):
            yield node
        if not isinstance(node, ast.Lambda):
            test = getattr(node, "test", None)
            todo += [child for child in ast.iter_child_nodes(node) if child is not test][::-1]


def _arms(node: ast.expr) -> Iterator[tuple[ast.expr, _Why]]:
    if isinstance(node, ast.IfExp):
        test = _text(node.test)
        yield node.body, _Why(f"`{test}` was never true", _asks_for_nothing(node.test))
        yield node.orelse, _Why(f"`{test}` was never false")
    elif isinstance(node, ast.BoolOp) and not isinstance(node.values[-1], ast.Compare):
        word, never = ("or", "false") if isinstance(node.op, ast.Or) else ("and", "true")
        last = node.values[-1]
        why = f"the left side of `{word}` was never {never}"
        yield last, _Why(why, isinstance(last, ast.Constant))


def _decides(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.IfExp):
        return node.test
    assert isinstance(node, ast.BoolOp)
    return node.values[0]


def _after(node: ast.stmt) -> _Why:
    """Why what follows `node` in its block is not reached although `node` is."""
    if isinstance(node, ast.If):
        return _Why(f"`if {_text(node.test)}` was always true")
    if isinstance(node, ast.Match):
        return _Why(f"one case of `match {_text(node.subject)}` always returned")
    if isinstance(node, ast.For | ast.While):
        return _Why("the loop before it always returned")
    return _Why("the statement before it always left the function")


def _only_raises(body: list[ast.stmt]) -> bool:
    return all(isinstance(node, ast.Raise | ast.Assert | ast.Pass) for node in body)


def _asks_for_nothing(test: ast.expr) -> bool:
    """Whether a test only asks for None, an empty field, or a string in the place of a role."""
    match test:
        case ast.BoolOp(values=values):
            return all(_asks_for_nothing(value) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name() | ast.Attribute()):
            return True
        case ast.Compare(ops=[ast.Is() | ast.Eq()], comparators=[ast.Constant(value=None | "")]):
            return True
        case ast.Compare(ops=[ast.Eq()], comparators=[ast.Call(args=[], keywords=[])]):
            return True
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, ast.Name(id="str")]):
            return True
    return False


def _matches_nothing(case: ast.match_case) -> bool:
    return isinstance(case.pattern, ast.MatchSingleton) and case.pattern.value is None
