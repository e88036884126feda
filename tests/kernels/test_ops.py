"""The declaration of the ops: schema, fake outputs, tracing, equality with the reference."""

from typing import Any

import pytest
import torch

from qrole_kernels import ops, reference
from qrole_kernels.errors import ArgumentError
from tests.kernels.bitexact import assert_bits_equal

ROWS, COLS = 35, 150
"""No multiple of any block."""


def _matrix(dtype: torch.dtype = torch.bfloat16, rows: int = ROWS, cols: int = COLS):
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(7)).to(dtype)


def _codes(rows: int, cols: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(8)
    # Codes of finite values only in every format, so that NaN payloads don't enter.
    return torch.randint(0, 0x78, (rows, cols), generator=generator, dtype=torch.uint8)


def _scales(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(9)) + 0.5


def _integers(*shape: int) -> torch.Tensor:
    """Sums of their products are exact in any order."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(10)).float()


_F32, _BF16 = torch.float32, torch.bfloat16
_AMAX = torch.tensor(4.0)
_PAIRS = _codes(ROWS, COLS // 2)

ARGUMENTS: dict[str, list[tuple[Any, ...]]] = {
    "amax": [(_matrix(),), (_matrix(_F32).t(),), (_matrix(_F32, 0, 8),)],
    "amax_rows": [(_matrix(),), (_matrix(torch.float16).t(),)],
    "fp8_scale": [
        (_scales(3, 5), "e4m3", True, 0.0, 65504.0),
        (_scales(), "e5m2", False, 1.0, 1.0),
    ],
    "quantize_fp8": [(_matrix(), _scales(), "e4m3"), (_matrix(_F32).t(), _scales(), "e5m2")],
    "quantize_fp8_current": [(_matrix(), "e4m3"), (_matrix(_F32).t(), "e5m2", True, 0.5)],
    "quantize_fp8_rows": [(_matrix(), "e4m3"), (_matrix(_F32).t(), "e5m2")],
    "quantize_fp8_block": [
        (_matrix(), "e4m3", 1),
        (_matrix().t(), "e5m2", 1, False),
        (_matrix(torch.float16), "e4m3", 128, True, 1e-3),
    ],
    "quantize_mxfp8": [
        (_matrix(), "e4m3", 1, 32),
        (_matrix(_F32), "e5m2", 32, 1),
        (_matrix().t(), "e4m3", 32, 32),
    ],
    "quantize_nvfp4": [
        (_matrix(), _AMAX, 1),
        (_matrix(_F32).t(), _AMAX, 16),
        (_matrix(), _scales(ROWS), 1),
        (_matrix(_F32), _AMAX, 1, 256, "mae"),
        (_matrix(), _AMAX, 16, 448, "mse"),
        (_matrix(), _AMAX, 1, 448, "", _codes(ROWS, COLS)),
    ],
    "quantize_mxfp4": [(_matrix(), rule) for rule in ("rceil", "floor", "even")],
    "dequantize_fp8": [(_codes(ROWS, COLS), _scales(), "e4m3", _BF16)],
    "dequantize_fp8_rows": [(_codes(ROWS, COLS), _scales(ROWS, 1), "e5m2", _F32)],
    "dequantize_fp8_block": [
        (_codes(ROWS, COLS), _scales(ROWS, 2), "e4m3", 1, _BF16),
        (_codes(ROWS, COLS), _scales(1, 2), "e5m2", 128, torch.float16),
    ],
    "dequantize_mxfp8": [
        (_codes(ROWS, COLS), _codes(ROWS, 5), "e4m3", 1, 32, _F32),
        (_codes(ROWS, COLS), _codes(2, COLS), "e5m2", 32, 1, _BF16),
        (_codes(ROWS, COLS), _codes(2, 5), "e4m3", 32, 32, _BF16),
    ],
    "dequantize_nvfp4": [
        (_PAIRS, _codes(ROWS, 10), _AMAX, 448, _BF16),
        (_PAIRS, _codes(ROWS, 10), _scales(ROWS), 256, _F32),
    ],
    "dequantize_mxfp4": [(_PAIRS, _codes(ROWS, 5), _BF16)],
    "hadamard16": [(_matrix(cols=48),), (_matrix(rows=32).t(), 0)],
    "matmul_f32": [(_integers(5, 40), _integers(7, 40), exact) for exact in (True, False)],
    "matmul_fp8_block": [
        (_integers(5, 300), _integers(7, 300), _scales(5, 3), _scales(7, 3), 1, 1),
        (_integers(130, 200), _integers(7, 200), _scales(2, 2), _scales(7, 2), 128, 1),
    ],
    "pad_scales": [(_codes(5, 7),), (_codes(128, 4),), (_codes(5, 7), 4, 128)],
    "swizzle_scales": [(_codes(130, 7),), (_codes(7, 130).t(),)],
    "unswizzle_scales": [(_codes(1, 1024).flatten(), 129, 3)],
}

SAMPLES = [
    pytest.param(name, arguments, id=f"{name}-{i}")
    for name, samples in ARGUMENTS.items()
    for i, arguments in enumerate(samples)
]


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def test_every_reference_function_is_an_op_with_samples():
    plain_torch = {"update_delayed_scaling"}
    assert set(ARGUMENTS) == set(reference.__all__) - plain_torch
    assert all(callable(getattr(ops, name)) for name in ARGUMENTS)


@pytest.mark.parametrize(("name", "arguments"), SAMPLES)
def test_equals_the_reference(name, arguments):
    given, expected = getattr(ops, name)(*arguments), getattr(reference, name)(*arguments)
    for i, pair in enumerate(zip(_tensors(given), _tensors(expected), strict=True)):
        assert_bits_equal(*pair, f"{name} output {i}")
        assert pair[0].is_contiguous()


@pytest.mark.parametrize(("name", "arguments"), SAMPLES)
def test_opcheck(name, arguments):
    torch.library.opcheck(getattr(torch.ops.qrole, name).default, arguments)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_without_a_graph_break(backend):
    def round_trip(x):
        data, scale = ops.quantize_mxfp8(x, "e4m3", 1, 32)
        packed, e4m3 = ops.quantize_nvfp4(x, ops.amax(x), 1)
        return (
            ops.dequantize_mxfp8(data, scale, "e4m3", 1, 32, x.dtype),
            ops.dequantize_nvfp4(packed, e4m3, ops.amax(x), 448, x.dtype),
        )

    x = _matrix()
    compiled = torch.compile(round_trip, backend=backend, fullgraph=True)
    for given, expected in zip(compiled(x), round_trip(x), strict=True):
        assert_bits_equal(given, expected)


def test_compiles_for_changing_shapes():
    compiled = torch.compile(ops.quantize_mxfp8, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows, cols in ((32, 64), (35, 150), (1, 7)):
        x = _matrix(rows=rows, cols=cols)
        for given, expected in zip(
            compiled(x, "e4m3", 1, 32), reference.quantize_mxfp8(x, "e4m3", 1, 32), strict=True
        ):
            assert_bits_equal(given, expected)


def test_results_do_not_require_gradients():
    x = _matrix(_F32).requires_grad_()
    assert not ops.amax(x).requires_grad
    assert not any(t.requires_grad for t in ops.quantize_fp8_current(x, "e4m3"))
    assert not ops.hadamard16(_matrix(cols=16).requires_grad_()).requires_grad


def test_meta_tensors_give_shapes():
    packed, scale = ops.quantize_nvfp4(_matrix().to("meta"), _AMAX.to("meta"), 1)
    assert packed.device.type == scale.device.type == "meta"
    assert (packed.shape, scale.shape) == ((35, 75), (35, 10))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.amax(torch.zeros(3)), r"shape \(3,\). Expected a matrix \(M, K\). Flatten"),
        (
            lambda: ops.amax(torch.zeros(3, 3).double()),
            r"torch.float64. Expected float32, bfloat16",
        ),
        (lambda: ops.quantize_fp8_rows(_matrix(), "e3m4"), r"'e3m4'. Expected one of \['e4m3', "),
        (
            lambda: ops.quantize_fp8_block(_matrix(), "e4m3", 2),
            "block_rows=2. Expected one of 1, 128",
        ),
        (
            lambda: ops.quantize_mxfp8(_matrix(), "e4m3", 1, 1),
            r"\(1, 1\). Expected one of \(1, 32\)",
        ),
        (
            lambda: ops.quantize_mxfp4(_matrix(), "up"),
            "rule='up'. Expected one of 'rceil', 'floor'",
        ),
        (lambda: ops.quantize_nvfp4(_matrix(), _AMAX, 1, 300), "e4m3_max=300. Expected one of 448"),
        (
            lambda: ops.quantize_nvfp4(_matrix(), _scales(ROWS), 16),
            "one amax per row with block_rows",
        ),
        (
            lambda: ops.quantize_nvfp4(_matrix(), _scales(3), 1),
            r"amax of shape \(3,\). Expected shape",
        ),
        (
            lambda: ops.quantize_nvfp4(_matrix(), _AMAX, 1, 448, "mae", _codes(ROWS, COLS)),
            "random_bits together with four_over_six",
        ),
        (
            lambda: ops.dequantize_mxfp8(_codes(4, 64), _codes(4, 3), "e4m3", 1, 32, _F32),
            r"scale of shape \(4, 3\). Expected shape \(4, 2\)",
        ),
        (lambda: ops.hadamard16(_matrix(_F32)), "torch.float32 and shape"),
        (lambda: ops.unswizzle_scales(_codes(1, 8).flatten(), 1, 1), "8 swizzled scales for"),
    ],
)
def test_errors_say_what_was_given_and_expected(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
