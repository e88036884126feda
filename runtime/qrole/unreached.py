"""Code of a factory that never ran although its function did."""

from __future__ import annotations

import ast
import bisect
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qrole.branches import (
    DEFINITIONS,
    Located,
    SourceMap,
    Span,
    case_condition,
    source_span,
    source_text,
)

__all__ = ["Unreached", "find_unreached"]


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


def find_unreached(
    source: SourceMap, ran: Iterable[Span], exists: Iterable[Span]
) -> Iterator[Unreached]:
    """Code that never ran, outermost blocks only, in functions that did.

    Args:
        source: The file.
        ran: Where the instructions that ran stand.
        exists: Where all instructions of the functions that ran stand.
    """
    search = _Search(source, sorted(set(ran)), sorted(set(exists)))
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if search.ran_any(node.body):
                yield from search.block(node.body, node.name, None)
        elif isinstance(node, ast.Lambda) and search.ran(node.body):
            yield from search.expressions(node.body, "lambda")


@dataclass(frozen=True)
class _Search:
    source: SourceMap
    spans: list[Span]
    known: list[Span]

    def ran(self, node: Located) -> bool:
        return _any_in(self.spans, source_span(node))

    def exists(self, node: Located) -> bool:
        """Whether the compiler made any instruction of it; constants and `pass` may have none."""
        return _any_in(self.known, source_span(node))

    def ran_any(self, body: list[ast.stmt]) -> bool:
        return any(self.ran(node) for node in body)

    def block(self, body: list[ast.stmt], function: str, why: _Why | None) -> Iterator[Unreached]:
        """The unreached code of one block that was entered, or the block itself."""
        previous: ast.stmt | None = None
        for i, node in enumerate(body):
            if not self.exists(node) or isinstance(node, DEFINITIONS):
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

    def _found(self, node: Located, function: str, why: _Why) -> Unreached:
        text = self.source.line(node.lineno) if isinstance(node, ast.stmt) else source_text(node)
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
        test = source_text(node.test)
        yield node.body, _Why(f"`{word} {test}` was never true", _asks_for_nothing(node.test))
        if node.orelse and isinstance(node, ast.If):
            yield node.orelse, _Why(f"`{word} {test}` was never false")
    elif isinstance(node, ast.For):
        yield node.body, _Why(f"`for ... in {source_text(node.iter)}` had nothing to go over")
    elif isinstance(node, ast.Match):
        for case in node.cases:
            yield (
                case.body,
                _Why(f"`{case_condition(case).text}` never matched", _matches_nothing(case)),
            )
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
        test = source_text(node.test)
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
        return _Why(f"`if {source_text(node.test)}` was always true")
    if isinstance(node, ast.Match):
        return _Why(f"one case of `match {source_text(node.subject)}` always returned")
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
