"""The vector language: each operator against Python's arithmetic, on every instruction set."""

import ctypes
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

from qrole_kernels.cpu import simd
from qrole_kernels.cpu.builder import Kernel
from qrole_kernels.cpu.jit import KernelFamily
from qrole_kernels.cpu.simd import F32, I8, I16, I32, I64, PTR, Value, lanes

LANES = 16
FLOATS = [0.0, -0.0, 1.5, -2.25, 1e-45, -1e-40, 3e38, math.inf, -math.inf, math.nan, 6.0, -7.0]
FLOATS += [448.0, 0.1, -0.1, 1e-38]
INTEGERS = [0, 1, 2, 3, 5, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7F800000, 0x00400000, 255, 256]
NUMBERS = itertools.count()
"""Compiled kernels are cached by name."""
INTEGERS += [0x12345678, 65535, 65536, 0xDEADBEEF]


def evaluate(
    body: Callable[..., Value], inputs: list[list[Any]], kinds: list[Any], out: Any
) -> Any:
    """Runs `body` on vectors of these numbers; gives the numbers of the result."""

    def formula(k: Kernel) -> None:
        vectors = [k.pointer(f"in{i}").load(lanes(kind, LANES)) for i, kind in enumerate(kinds)]
        k.pointer("out").store(body(*vectors))

    formula.__name__ = f"formula_{next(NUMBERS)}"
    family = KernelFamily(formula, {**{f"in{i}": PTR for i in range(len(inputs))}, "out": PTR})
    memory = {F32: ctypes.c_float, I32: ctypes.c_uint32, I16: ctypes.c_uint16, I8: ctypes.c_uint8}
    arrays = [(memory[k] * LANES)(*values) for k, values in zip(kinds, inputs, strict=True)]
    result = (memory[out] * LANES)()
    family()(*map(ctypes.addressof, arrays), ctypes.addressof(result))
    return list(result)


def f32(value: float) -> float:
    try:
        return ctypes.c_float(value).value
    except OverflowError:
        return math.copysign(math.inf, value)


def same(given: list[float], expected: list[float]) -> bool:
    return all(
        (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
        for a, b in zip(given, expected, strict=True)
    )


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        pytest.param(lambda a, b: a + b, lambda a, b: a + b, id="add"),
        pytest.param(lambda a, b: a - b, lambda a, b: a - b, id="subtract"),
        pytest.param(lambda a, b: a * b, lambda a, b: a * b, id="multiply"),
        pytest.param(simd.minimum, lambda a, b: a if a < b else b, id="minimum"),
        pytest.param(simd.maximum, lambda a, b: a if a > b else b, id="maximum"),
    ],
)
def test_float_arithmetic(target, operator, expected):
    """In double and rounded: exact for sums and products of fp32 numbers, subnormals included."""
    others = [f32(v) for v in FLOATS[5:] + FLOATS[:5]]
    numbers = [f32(v) for v in FLOATS]
    given = evaluate(operator, [numbers, others], [F32, F32], F32)
    assert same(given, [f32(expected(a, b)) for a, b in zip(numbers, others, strict=True)])


def test_product_and_sum_round_twice(target):
    a = [f32(1 + i * 2**-20) for i in range(LANES)]
    given = evaluate(lambda x: x * x - 1.0, [a], [F32], F32)
    assert given == [f32(f32(v * v) - 1.0) for v in a]


def test_division(target):
    a = [f32(v) for v in FLOATS]
    expected = [f32(math.copysign(math.inf, v) if v == 0 else 1.0 / v) for v in a]
    assert same(evaluate(lambda x: 1.0 / x, [a], [F32], F32), expected)
    assert same(evaluate(lambda x: x / 3.0, [a], [F32], F32), [f32(v / 3.0) for v in a])


MASK = 0xFFFFFFFF


def signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        pytest.param(lambda a: a + 5, lambda a: a + 5, id="add"),
        pytest.param(lambda a: 5 - a, lambda a: 5 - a, id="subtract"),
        pytest.param(lambda a: a * 3, lambda a: a * 3, id="multiply"),
        pytest.param(lambda a: a // 7, lambda a: a // 7, id="divide"),
        pytest.param(lambda a: a & -64, lambda a: a & -64, id="and"),
        pytest.param(lambda a: a | 0xFF00, lambda a: a | 0xFF00, id="or"),
        pytest.param(lambda a: a ^ 0xFF, lambda a: a ^ 0xFF, id="xor"),
        pytest.param(lambda a: a << 4, lambda a: a << 4, id="left"),
        pytest.param(lambda a: a >> 4, lambda a: a >> 4, id="right-is-logical"),
        pytest.param(
            lambda a: simd.maximum(a, 3), lambda a: a if signed(a) > 3 else 3, id="maximum-signed"
        ),
        pytest.param(
            lambda a: simd.select(a < 0, 1, a.like(2)),
            lambda a: 1 if signed(a) < 0 else 2,
            id="select",
        ),
        pytest.param(
            lambda a: simd.select(a.equals(255), 1, a), lambda a: 1 if a == 255 else a, id="equals"
        ),
        pytest.param(
            lambda a: simd.select(a >= 255, 1, a), lambda a: 1 if signed(a) >= 255 else a, id="ge"
        ),
        pytest.param(
            lambda a: simd.select(a <= 255, 1, a), lambda a: 1 if signed(a) <= 255 else a, id="le"
        ),
        pytest.param(
            lambda a: a.largest_lane().splat(LANES) ^ (a & 0),
            lambda a: 0x7FFFFFFF,
            id="largest-lane-signed",
        ),
        pytest.param(
            lambda a: simd.select(a.equals(255).any(), a, a.like(0)), lambda a: a, id="any"
        ),
        pytest.param(
            lambda a: simd.select(a.equals(77).any(), a, a.like(0)), lambda a: 0, id="none"
        ),
    ],
)
def test_integer_arithmetic(target, operator, expected):
    given = evaluate(operator, [INTEGERS], [I32], I32)
    assert given == [expected(value) & MASK for value in INTEGERS]


def test_lanes(target):
    backwards = [LANES - 1 - i for i in range(LANES)]
    assert evaluate(lambda a: a.take(backwards), [INTEGERS], [I32], I32) == INTEGERS[::-1]
    second = [i + LANES for i in range(LANES)]
    other = list(range(LANES))
    given = evaluate(lambda a, b: a.take(second, b), [INTEGERS, other], [I32, I32], I32)
    assert given == other
    given = evaluate(lambda a: a.lane(3).splat(LANES), [INTEGERS], [I32], I32)
    assert given == [INTEGERS[3]] * LANES
    given = evaluate(
        lambda a: simd.gather([a.lane(i ^ 1) for i in range(LANES)]), [INTEGERS], [I32], I32
    )
    assert given == [INTEGERS[i ^ 1] for i in range(LANES)]


def test_conversions(target):
    assert evaluate(lambda a: a.narrow(I8), [INTEGERS], [I32], I8) == [v & 0xFF for v in INTEGERS]
    halves = [v & 0xFFFF for v in INTEGERS]
    assert evaluate(lambda a: a.widen(I32), [halves], [I16], I32) == halves
    small = list(range(LANES))
    assert evaluate(lambda a: a.to_f32(), [small], [I32], F32) == [float(v) for v in small]
    fractions = [f32(v * 1.7) for v in range(-8, 8)]
    given = evaluate(lambda a: a.truncate(), [fractions], [F32], I32)
    assert given == [int(v) & MASK for v in fractions]
    numbers = [f32(v) for v in FLOATS]
    assert same(evaluate(lambda a: a.bits().as_f32(), [numbers], [F32], F32), numbers)
    assert same(evaluate(lambda a: a.magnitude(), [numbers], [F32], F32), [abs(v) for v in numbers])


def collatz(k: Kernel) -> None:
    """Steps to reach 1, at most 200: loops, variables and branches."""
    value, steps = k.variable(k["start"]), k.variable(k.constant(I64, 0))
    with k.range(200) as i:
        running = value.get() > 1
        with k.when(running):
            odd = (value.get() & 1).equals(1)
            value.set(simd.select(odd, value.get() * 3 + 1, value.get() >> 1))
            steps.set(i + 1)
        with k.unless(running):
            value.set(value.get())
    k.pointer("out").store(steps.get())


@pytest.mark.parametrize(("start", "steps"), [(1, 0), (2, 1), (27, 111), (97, 118)])
def test_control_flow(target, start, steps):
    found = ctypes.c_int64()
    KernelFamily(collatz, {"start": I64, "out": PTR})()(start, ctypes.addressof(found))
    assert found.value == steps


def count_up(k: Kernel) -> None:
    total = k.variable(k.constant(I64, 0))
    with k.range(k["stop"], 3) as i:
        total.set(total.get() + i)
    k.pointer("out").store(total.get())


@pytest.mark.parametrize("stop", [-1, 0, 1, 3, 4, 100])
def test_range_with_a_step(target, stop):
    found = ctypes.c_int64(-1)
    KernelFamily(count_up, {"stop": I64, "out": PTR})()(stop, ctypes.addressof(found))
    assert found.value == sum(range(0, stop, 3))
