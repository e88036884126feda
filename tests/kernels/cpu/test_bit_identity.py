"""Compiled kernels against the reference, bit for bit, on every instruction set."""

import functools
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from qrole_kernels import cpu_tensors, reference
from qrole_kernels.cpu.targets import LEVELS
from tests.kernels.bitexact import assert_bits_equal
from tests.kernels.cpu.matrices import DTYPES, all_bit_patterns, ragged

FP8 = ("e4m3", "e5m2")
TARGETS = ("own", *LEVELS)


def place(target: str, dtype: str):
    """A machine that has AVX-512 runs nearly the same as its own; f16 differs in reading only."""
    is_slow = target == "avx512" or (target != "own" and dtype == "f16")
    marks = [pytest.mark.slow] if is_slow else []
    return pytest.param(target, dtype, marks=marks, id=f"{target}-{dtype}")


PLACES = pytest.mark.parametrize(
    ("target", "dtype"),
    [place(target, dtype) for target in TARGETS for dtype in DTYPES],
    indirect=["target"],
)
QUANTIZE = [
    ("amax",),
    ("amax_rows",),
    *[("quantize_fp8_current", e, p) for e in FP8 for p in (False, True)],
    *[("quantize_fp8_rows", e) for e in FP8],
    *[("quantize_fp8_block", e, b, p, 1e-3) for e in FP8 for b in (1, 128) for p in (False, True)],
    *[("quantize_mxfp8", e, *b) for e in FP8 for b in ((1, 32), (32, 1), (32, 32))],
    *[("quantize_mxfp4", rule) for rule in ("rceil", "floor", "even")],
]


@functools.cache
def inputs(dtype: str) -> list[tuple[str, Tensor]]:
    return [*ragged(dtype), *all_bit_patterns(dtype)]


@functools.cache
def expected(dtype: str, name: str, *options: object) -> list[tuple[Tensor, ...]]:
    """What the reference gives for every input; computed once for all targets."""
    return [as_tuple(getattr(reference, name)(x, *options)) for _, x in inputs(dtype)]


def as_tuple(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def assert_same(given: Iterable[Tensor], wanted: tuple[Tensor, ...], what: str) -> None:
    for i, (ours, theirs) in enumerate(zip(given, wanted, strict=True)):
        assert_bits_equal(ours, theirs, f"{what}, output {i}")


@PLACES
@pytest.mark.parametrize("call", QUANTIZE, ids=lambda call: "-".join(map(str, call)))
def test_quantize(target, call, dtype):
    name, *options = call
    for (what, x), wanted in zip(inputs(dtype), expected(dtype, *call), strict=True):
        assert_same(as_tuple(getattr(cpu_tensors, name)(x, *options)), wanted, what)


@functools.cache
def expected_nvfp4(dtype: str, rows: bool, block_rows: int, e4m3_max: int, share: float):
    results = []
    for _, x in inputs(dtype):
        amax = (reference.amax_rows(x) if rows else reference.amax(x)) * share
        results.append((amax, reference.quantize_nvfp4(x, amax, block_rows, e4m3_max)))
    return results


@PLACES
@pytest.mark.parametrize(
    ("rows", "block_rows", "e4m3_max", "share"),
    [
        pytest.param(False, 1, 448, 1.0, id="tensor"),
        pytest.param(False, 1, 256, 1.0, id="tensor-256"),
        pytest.param(False, 1, 448, 0.2, id="amax-too-small"),
        pytest.param(False, 1, 448, -1.0, id="amax-negative"),
        pytest.param(False, 16, 448, 1.0, id="square"),
        pytest.param(True, 1, 448, 1.0, id="rows"),
    ],
)
def test_quantize_nvfp4(target, rows, block_rows, e4m3_max, share, dtype):
    wanted = expected_nvfp4(dtype, rows, block_rows, e4m3_max, share)
    for (what, x), (amax, outputs) in zip(inputs(dtype), wanted, strict=True):
        assert_same(cpu_tensors.quantize_nvfp4(x, amax, block_rows, e4m3_max), outputs, what)


def amax_of(x: Tensor, rows: bool) -> Tensor:
    return reference.amax_rows(x) if rows else reference.amax(x)


SCOPES = pytest.mark.parametrize(
    ("rows", "block_rows"), [(False, 1), (False, 16), (True, 1)], ids=["tensor", "square", "rows"]
)


@functools.cache
def expected_stochastic(dtype: str, rows: bool, block_rows: int):
    results = []
    for i, (_, x) in enumerate(inputs(dtype)):
        amax, bits = amax_of(x, rows), codes(*x.shape, i)
        results.append((amax, bits, reference.quantize_nvfp4(x, amax, block_rows, 448, "", bits)))
    return results


@PLACES
@SCOPES
def test_stochastic_nvfp4(target, rows, block_rows, dtype):
    wanted = expected_stochastic(dtype, rows, block_rows)
    for (what, x), (amax, bits, outputs) in zip(inputs(dtype), wanted, strict=True):
        assert_same(cpu_tensors.quantize_nvfp4(x, amax, block_rows, 448, "", bits), outputs, what)


@functools.cache
def expected_four_over_six(dtype: str, rows: bool, block_rows: int, error: str):
    pairs = [(x, amax_of(x, rows)) for _, x in inputs(dtype)]
    return [(a, reference.quantize_nvfp4(x, a, block_rows, 448, error)) for x, a in pairs]


@PLACES
@pytest.mark.parametrize("error", ["mae", "mse"])
@SCOPES
def test_four_over_six(target, rows, block_rows, error, dtype):
    wanted = expected_four_over_six(dtype, rows, block_rows, error)
    for (what, x), (amax, outputs) in zip(inputs(dtype), wanted, strict=True):
        assert_same(cpu_tensors.quantize_nvfp4(x, amax, block_rows, 448, error), outputs, what)


@pytest.mark.parametrize("element", FP8)
@pytest.mark.parametrize("scale", [1.0, 0.37, 3e38, 0.0, -2.5, torch.inf, -torch.inf, torch.nan])
def test_any_given_scale(target, scale, element):
    for dtype in DTYPES:
        for what, x in all_bit_patterns(dtype):
            factor = torch.tensor(scale)
            wanted = reference.quantize_fp8(x, factor, element)
            assert_bits_equal(cpu_tensors.quantize_fp8(x, factor, element), wanted, what)


def codes(rows: int, cols: int, seed: int) -> Tensor:
    """Every byte, in rows that divide by nothing."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows, cols), generator=generator, dtype=torch.uint8)


@functools.cache
def encoded() -> list[tuple[str, tuple[object, ...]]]:
    """Arguments of every way to decode, but for the dtype of the result."""
    m, k = 130, 1000
    data, amax = codes(m, k, 1), torch.tensor([3.0e38, 1e-30, -2.0, torch.nan]).repeat(m)[:m]
    floats = codes(m, 4 * 8, 2).view(torch.float32)
    mx = {(1, 32): codes(m, 32, 3), (32, 1): codes(5, k, 4), (32, 32): codes(5, 32, 5)}
    calls: list[tuple[str, tuple[object, ...]]] = [
        ("dequantize_mxfp4", (data, codes(m, 63, 6))),
        *[("dequantize_nvfp4", (data, codes(m, 125, 7), a, 448)) for a in (amax, amax[2])],
        ("dequantize_nvfp4", (data, codes(m, 125, 8), torch.tensor(1.5), 256)),
    ]
    for element in FP8:
        calls += [
            ("dequantize_fp8", (data, torch.tensor(0.3), element)),
            ("dequantize_fp8_rows", (data, floats[:, :1], element)),
            ("dequantize_fp8_block", (data, floats, element, 1)),
            ("dequantize_fp8_block", (data, floats[:2], element, 128)),
            *[("dequantize_mxfp8", (data, scale, element, *block)) for block, scale in mx.items()],
        ]
    return calls


@PLACES
def test_dequantize(target, dtype):
    for name, arguments in encoded():
        wanted = getattr(reference, name)(*arguments, DTYPES[dtype])
        given = getattr(cpu_tensors, name)(*arguments, DTYPES[dtype])
        assert_bits_equal(given, wanted, f"{name} {arguments[2:]}")


def test_hadamard(target):
    for what, x in [*ragged("bf16"), *all_bit_patterns("bf16")]:
        x = x[:, : x.shape[1] // 16 * 16].contiguous()
        assert_bits_equal(cpu_tensors.hadamard16(x), reference.hadamard16(x), what)
        mask = 0x1234
        assert_bits_equal(cpu_tensors.hadamard16(x, mask), reference.hadamard16(x, mask), what)
