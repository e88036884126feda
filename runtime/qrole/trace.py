"""Watching a factory answer: which line decided, which conditions led there, what never ran.

Python 3.12 and later are watched through `sys.monitoring`, 3.11 through `sys.settrace`; both report
the instructions of the user's own code, and everything else is derived from their source positions.
"""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from qrole.branches import Condition, Point, SourceMap, Span, instruction_spans
from qrole.plans import Origin
from qrole.plugins import Factory
from qrole.unreached import Unreached, find_unreached

__all__ = ["Tracer"]

_QROLE = str(Path(__file__).resolve().parent)


class Tracer:
    """Calls a factory and keeps what happened inside the user's files.

    `observe` is what `build_plan` takes. The user's files are the factory's own and every file that
    it calls which belongs neither to Python, to an installed package, nor to qrole.

    Args:
        factory: The factory that will be called.
        use_monitoring: Watch through `sys.monitoring`; None where this Python has it.
    """

    def __init__(self, factory: Factory, *, use_monitoring: bool | None = None) -> None:
        self.factory = factory
        self._own = _own_files(factory)
        self._codes: dict[CodeType, _Code | None] = {}
        self._sources: dict[str, SourceMap | None] = {}
        monitoring = hasattr(sys, "monitoring") if use_monitoring is None else use_monitoring
        self._watch = _monitor if monitoring else _settrace

    def observe(self, function: Callable[[Any], Any], argument: Any) -> tuple[Any, Origin | None]:
        """Calls `function(argument)`; the origin is None where no code of the user's answered."""
        call = _Call(self._code)
        with_watch = self._watch(call)
        try:
            answer = function(argument)
        finally:
            with_watch()
        return answer, self._origin(call, answer)

    def unreached(self) -> tuple[Unreached, ...]:
        """The branches of the user's own functions that no call reached, by file and line."""
        found: list[Unreached] = []
        for file, codes in self._by_file().items():
            source = self._sources[file]
            if source is None or file.startswith(f"{_QROLE}/"):
                continue
            ran = [span for code in codes for span in code.ran_at()]
            exists = [span for code in codes for span in code.spans if span is not None]
            found += find_unreached(source, ran, exists)
        return tuple(sorted(set(found), key=lambda u: (u.file, u.line, u.why)))

    def untraceable(self) -> str:
        """Why the factory could not be watched, after it was called; `""` where it was."""
        if any(code is not None for code in self._codes.values()):
            return ""
        if not any(Path(file).is_file() for file in self._own):
            return "its source is not to be had"
        return "no function of its file was entered (a cached or compiled callable)"

    def _by_file(self) -> dict[str, list[_Code]]:
        files: dict[str, list[_Code]] = {}
        for code in self._codes.values():
            if code is not None and code.ran:
                files.setdefault(code.file, []).append(code)
        return files

    def _code(self, code: CodeType) -> _Code | None:
        if code not in self._codes:
            self._codes[code] = self._load(code)
        return self._codes[code]

    def _load(self, code: CodeType) -> _Code | None:
        file = code.co_filename
        if file not in self._own and not _is_users(file):
            return None
        if file not in self._sources:
            self._sources[file] = SourceMap.read(file)
        source = self._sources[file]
        return None if source is None else _Code(file, source, instruction_spans(code))

    def _origin(self, call: _Call, answer: Any) -> Origin | None:
        """The innermost frame that returned the answer; the conditions of it and its callers."""
        chain = [frame for frame in call.returned if frame.value is answer]
        if not chain:
            return None
        inner = chain[0]
        taken = [(*taken, frame.code.file) for frame in chain for taken in frame.outcomes.values()]
        taken.sort(key=lambda item: item[0])
        return Origin(
            "factory",
            inner.code.file,
            inner.line,
            inner.code.source.statement(inner.line),
            tuple(
                (c.line, c.text if file == inner.code.file else f"{c.text} ({file})", outcome)
                for _, c, outcome, file in taken
            ),
        )


@dataclass
class _Code:
    """One code object of the user's: where its instructions are, and which of them ran."""

    file: str
    source: SourceMap
    spans: tuple[Span | None, ...]
    ran: set[int] = field(default_factory=set)
    _tests: dict[int, tuple[Condition, ...]] = field(default_factory=dict)

    def ran_at(self) -> Iterator[Span]:
        """Where the instructions that ran stand."""
        for index in self.ran:
            span = self.spans[index]
            if span is not None:
                yield span

    def tests(self, index: int) -> tuple[Condition, ...]:
        """The conditions that an instruction takes part in testing."""
        if index not in self._tests:
            span = self.spans[index]
            self._tests[index] = tuple(
                c for c in self.source.conditions if span is not None and c.tested_at(span.start)
            )
        return self._tests[index]


@dataclass
class _Frame:
    """One activation of a code object of the user's."""

    code: _Code
    call: _Call
    outcomes: dict[Condition, tuple[int, Condition, bool]] = field(default_factory=dict)
    previous: int | None = None
    line: int = 0
    value: Any = None

    def instruction(self, offset: int) -> None:
        index = offset // 2
        span = self.code.spans[index]
        if span is None:
            return
        self.code.ran.add(index)
        if self.previous is not None and (tested := self.code.tests(self.previous)):
            self._leave(tested, index, span.start)
        self.previous = index

    def _leave(self, tested: tuple[Condition, ...], index: int, point: Point) -> None:
        still = self.code.tests(index)
        for condition in tested:
            if condition not in still:
                self._decided(condition, condition.outcome(point))

    def _decided(self, condition: Condition, held: bool) -> None:
        self.outcomes.pop(condition, None)
        self.outcomes[condition] = (self.call.tick(), condition, held)

    def raised(self) -> None:
        """The frame is left, or a handler entered: the next instruction tells no outcome."""
        self.previous = None

    def finished(self, line: int, value: Any) -> None:
        """The frame returns; a test that nothing followed did not hold."""
        if self.previous is not None:
            for condition in self.code.tests(self.previous):
                self._decided(condition, condition.inverted)
        self.line, self.value = line, value
        self.call.returned.append(self)


@dataclass
class _Call:
    """One call of the factory: the frames that returned, innermost first."""

    lookup: Callable[[CodeType], _Code | None]
    returned: list[_Frame] = field(default_factory=list)
    ticks: int = 0

    def tick(self) -> int:
        self.ticks += 1
        return self.ticks


def _settrace(call: _Call) -> Callable[[], None]:
    """Watches through `sys.settrace`; returns what ends it."""
    before = sys.gettrace()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        code = call.lookup(frame.f_code)
        if code is None:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        state = _Frame(code, call)
        unwinding = False

        def inside(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal unwinding
            if event == "opcode":
                unwinding = False
                state.instruction(frame.f_lasti)
            elif event == "exception":
                unwinding = True
                state.raised()
            elif event == "return" and not unwinding:
                state.finished(frame.f_lineno, argument)
            return inside

        return inside

    sys.settrace(enter)
    return functools.partial(sys.settrace, before)


def _monitor(call: _Call) -> Callable[[], None]:
    """Watches through `sys.monitoring` (Python 3.12 and later); returns what ends it."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    events = monitoring.events
    tool = next((i for i in (3, 4, 2, 1, 0, 5) if monitoring.get_tool(i) is None), None)
    if tool is None:
        return _settrace(call)
    local = events.INSTRUCTION | events.PY_RETURN | events.PY_YIELD
    stack: list[tuple[CodeType, _Frame]] = []
    watched: set[CodeType] = set()

    def start(code: CodeType, offset: int) -> None:
        found = call.lookup(code)
        if found is None:
            return
        if code not in watched:
            watched.add(code)
            monitoring.set_local_events(tool, code, local)
        stack.append((code, _Frame(found, call)))

    def instruction(code: CodeType, offset: int) -> None:
        if stack and stack[-1][0] is code:
            stack[-1][1].instruction(offset)

    def returned(code: CodeType, offset: int, value: Any) -> None:
        if stack and stack[-1][0] is code:
            line = next((at for a, b, at in code.co_lines() if a <= offset < b and at), 0)
            stack.pop()[1].finished(line, value)

    def raised(code: CodeType, offset: int, error: BaseException) -> None:
        if stack and stack[-1][0] is code:
            stack[-1][1].raised()

    def unwound(code: CodeType, offset: int, error: BaseException) -> None:
        if stack and stack[-1][0] is code:
            stack.pop()

    callbacks = {
        events.PY_START: start,
        events.PY_RESUME: start,
        events.INSTRUCTION: instruction,
        events.PY_RETURN: returned,
        events.PY_YIELD: returned,
        events.RAISE: raised,
        events.PY_UNWIND: unwound,
    }
    monitoring.use_tool_id(tool, "qrole")
    for event, callback in callbacks.items():
        monitoring.register_callback(tool, event, callback)
    whole = events.PY_START | events.PY_RESUME | events.RAISE | events.PY_UNWIND
    monitoring.set_events(tool, whole)

    def end() -> None:
        monitoring.set_events(tool, 0)
        for code in watched:
            monitoring.set_local_events(tool, code, 0)
        for event in callbacks:
            monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)

    return end


def _own_files(factory: Factory) -> frozenset[str]:
    """Files that count as the user's wherever they lie: the factory's, behind its wrappers."""
    files = {factory.file} if factory.file else set()
    inner: Any = factory.function
    while isinstance(inner, functools.partial):
        inner = inner.func
    code = getattr(inspect.unwrap(inner), "__code__", None)
    if isinstance(code, CodeType):
        files.add(code.co_filename)
    return frozenset(files)


@functools.lru_cache(maxsize=1024)
def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return False
    paths = sysconfig.get_paths()
    foreign = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], _QROLE]
    return not any(file.startswith(f"{folder}/") for folder in foreign)
