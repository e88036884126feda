"""Watching factories: the deciding line, the conditions on the way, what never ran."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qrole.plans import Origin
from qrole.plugins import Factory
from qrole.roles import QuantizerRole
from qrole.trace import Tracer
from qrole.user_code import load_file

SOURCE = '''
"""Factories of many kinds."""

import functools
from qrole import IdentityQuantizer as Identity, MXFP8Quantizer

TABLE = [("attn", lambda role: Identity()), ("mlp", lambda role: MXFP8Quantizer(7))]


def by_table(role):
    for part, make in TABLE:
        if part in role.name:
            return make(role)
    return Identity()


def plain(role):
    """Says what it does."""
    if role is None:
        return Identity()
    if role.module_type == "dpa" and role.tensor_type in ("s", "dp"):
        return Identity()
    elif role.module_type == "grouped_linear":
        answer = Identity()
        return answer
    wide = 1 if role.tensor_type == "input" else 2
    match (role.module_type, role.tensor_type):
        case ("linear", "weight") if wide == 2:
            return MXFP8Quantizer(7)
        case ("conv", _):
            return Identity()
        case _:
            pass
    return by_table(role)


def make(high):
    offset = 1

    def inner(role):
        if high:
            return Identity()
        return plain(role)

    return inner


class Counting:
    def __init__(self):
        self.calls = 0

    def __call__(self, role):
        self.calls += 1
        return Identity() if self.calls > 100 else plain(role)


arrow = lambda role: Identity() if role.name == "head" else MXFP8Quantizer(7)


def filtered(role):
    found = [make for part, make in TABLE if part in role.name]
    if not found: return Identity()
    return found[0](role)


def last_one(role):
    kind = role.tensor_type or "weight"
    for part, make in TABLE:
        if part not in role.name: continue
        return make(role)
    raise ValueError(role)


def fallback(role):
    try:
        return {"linear": MXFP8Quantizer}[role.module_type](7)
    except KeyError:
        return Identity()


@functools.lru_cache
def cached(role):
    return Identity()


def raising(role):
    if role.name.startswith("x"):
        return Identity()
    return role.missing
'''

LINES = SOURCE.splitlines()


@pytest.fixture
def module(tmp_path: Path) -> Any:
    path = tmp_path / "factories.py"
    path.write_text(SOURCE)
    return load_file(path)


def role(tensor_type: str, name: str, module_type: str = "linear") -> QuantizerRole:
    return QuantizerRole(module_type, tensor_type, name)


def watched(function: Callable[..., Any], *roles: QuantizerRole | None) -> tuple[Tracer, Any]:
    tracer = Tracer(Factory.of(function))
    origins = [tracer.observe(function, one)[1] for one in roles]
    return tracer, origins[-1]


def line_of(text: str) -> int:
    return LINES.index(text) + 1


def conditions(origin: Origin) -> list[tuple[str, bool]]:
    return [(text, outcome) for _, text, outcome in origin.conditions]


def unreached(tracer: Tracer) -> list[tuple[int, str]]:
    return [(found.line, found.why) for found in tracer.unreached()]


def test_the_line_that_returned_and_the_conditions_on_the_way(module: Any) -> None:
    _, origin = watched(module.plain, role("weight", "layers.0.mlp.up"))
    assert origin.kind == "factory"
    assert origin.file == module.__file__
    assert origin.line == line_of("            return MXFP8Quantizer(7)")
    assert origin.text == "return MXFP8Quantizer(7)"
    assert conditions(origin) == [
        ("role is None", False),
        ("role.module_type == 'dpa' and role.tensor_type in ('s', 'dp')", False),
        ("role.module_type == 'grouped_linear'", False),
        ("role.tensor_type == 'input'", False),
        ("case ['linear', 'weight'] if wide == 2", True),
    ]


def test_a_nested_factory_is_named_where_it_decides(module: Any) -> None:
    _, origin = watched(module.plain, role("input", "layers.0.mlp.up"))
    assert origin.line == line_of(next(line for line in LINES if line.startswith("TABLE")))
    assert conditions(origin)[-2:] == [("case ['conv', _]", False), ("part in role.name", True)]


def test_a_loop_shows_its_last_outcome(module: Any) -> None:
    _, origin = watched(module.by_table, role("input", "head"))
    assert origin.line == line_of("    return Identity()")
    assert conditions(origin) == [("part in role.name", False)]


@pytest.mark.parametrize("high", [True, False])
def test_closures(module: Any, high: bool) -> None:
    tracer, origin = watched(module.make(high), role("weight", "a.mlp"))
    assert conditions(origin)[0] == ("high", high)
    never = "`if high` was always true" if high else "`if high` was never true"
    assert never in [why for _, why in unreached(tracer)]


def test_partials(module: Any) -> None:
    def by_kind(kind: str, role: QuantizerRole) -> Any:
        return module.arrow(role)

    _, origin = watched(functools.partial(by_kind, "linear"), role("weight", "head"))
    assert origin.file == module.__file__
    assert conditions(origin) == [("role.name == 'head'", True)]


def test_callable_objects(module: Any) -> None:
    tracer, origin = watched(module.Counting(), role("weight", "a"))
    assert conditions(origin)[0] == ("self.calls > 100", False)
    assert unreached(tracer)[-1][1] == "`self.calls > 100` was never true"


def test_lambdas(module: Any) -> None:
    tracer, _ = watched(module.arrow, role("weight", "a"))
    assert unreached(tracer) == [
        (line_of(next(x for x in LINES if x.startswith("arrow"))), "`role.name == 'head'` was "
         "never true")
    ]  # fmt: skip


def test_one_line_branches(module: Any) -> None:
    tracer, origin = watched(module.filtered, role("weight", "attn"))
    assert ("not found", False) in conditions(origin)
    assert [why for _, why in unreached(tracer)] == ["`if not found` was never true"]
    tracer, origin = watched(module.filtered, role("weight", "head"))
    assert conditions(origin) == [("not found", True)]


def test_continue_on_one_line(module: Any) -> None:
    tracer, origin = watched(module.last_one, role("weight", "mlp"))
    assert conditions(origin)[-1] == ("part not in role.name", False)
    assert unreached(tracer) == [(line_of('    kind = role.tensor_type or "weight"'),
                                  "the left side of `or` was never false")]  # fmt: skip
    assert tracer.unreached()[0].guard


def test_what_no_role_reached(module: Any) -> None:
    roles = [role(t, f"layers.{i}.mlp") for t in ("input", "weight") for i in range(2)]
    tracer, _ = watched(module.plain, *roles)
    found = [(u.line, u.function, u.guard) for u in tracer.unreached()]
    assert found == [
        (line_of("    return Identity()"), "by_table", False),
        (line_of("        return Identity()"), "plain", True),
        (line_of("        return Identity()") + 2, "plain", False),
        (line_of("        answer = Identity()"), "plain", False),
        (line_of('        case ("conv", _):') + 1, "plain", False),
    ]


def test_everything_reached_is_nothing_to_report(module: Any) -> None:
    tracer, _ = watched(module.by_table, role("weight", "mlp"), role("weight", "head"))
    assert tracer.unreached() == ()


def test_handlers_and_branches_that_only_raise_are_not_reported(module: Any) -> None:
    tracer, origin = watched(module.fallback, role("weight", "a"))
    assert tracer.unreached() == ()
    tracer, origin = watched(module.fallback, role("weight", "a", "conv"))
    assert origin.text == "return Identity()"
    tracer, _ = watched(module.last_one, role("", "mlp"), role("x", "attn"))
    assert tracer.unreached() == ()


def test_an_exception_passes_and_leaves_nothing_behind(module: Any) -> None:
    tracer = Tracer(Factory.of(module.raising))
    before = sys.gettrace()
    with pytest.raises(AttributeError, match="missing"):
        tracer.observe(module.raising, role("weight", "a"))
    assert sys.gettrace() is before
    _, origin = tracer.observe(module.raising, role("weight", "xa"))
    assert conditions(origin) == [("role.name.startswith('x')", True)]


def test_a_factory_without_source_says_so() -> None:
    function = eval("lambda role: object()")
    tracer, origin = watched(function, role("weight", "a"))
    assert origin is None
    assert tracer.untraceable() == "its source is not to be had"
    assert tracer.unreached() == ()


def test_a_cached_answer_has_no_origin(module: Any) -> None:
    one = role("weight", "a")
    module.cached(one)
    tracer, origin = watched(module.cached, one)
    assert origin is None
    assert "was entered" in tracer.untraceable()


def test_a_factory_of_qroles_own_is_explained_and_not_judged() -> None:
    from qrole.factories.builtin import nvfp4_factory

    tracer, origin = watched(nvfp4_factory, role("weight", "a"))
    assert origin.text == "return NVFP4Quantizer(with_2d_quantization=True)"
    assert tracer.unreached() == ()
