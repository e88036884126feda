"""The emulated GEMM: pairings, folding, order of the block-wise sums, precision settings."""

import threading

import pytest
import torch

from qrole_kernels import cpu_matmul, ops, reference
from qrole_kernels import gemm as gemm_module
from qrole_kernels.errors import ArgumentError, PairingError
from qrole_kernels.gemm import Operand, gemm
from tests.kernels.bitexact import assert_bits_equal

F32, BF16 = torch.float32, torch.bfloat16
M, N, K = 40, 24, 272


def _matrix(rows, cols=K, seed=0, dtype=BF16):
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _tensor(x, element="e4m3"):
    data, _, scale_inv, _ = reference.quantize_fp8_current(x, element)
    decoded = reference.dequantize_fp8(data, scale_inv, element, F32)
    return Operand("fp8_tensor", data, scale_inv, element=element), decoded


def _rows(x, element="e4m3"):
    data, scale_inv = reference.quantize_fp8_rows(x, element)
    decoded = reference.dequantize_fp8_rows(data, scale_inv, element, F32)
    return Operand("fp8_rows", data, scale_inv, element=element), decoded


def _block(x, rows=1, power_of_two=True, element="e4m3"):
    data, scale_inv = reference.quantize_fp8_block(x, element, rows, power_of_two)
    decoded = reference.dequantize_fp8_block(data, scale_inv, element, rows, F32)
    name = "fp8_block_1d" if rows == 1 else "fp8_block_2d"
    return Operand(name, data, scale_inv, element=element), decoded


def _mxfp8(x, element="e4m3"):
    data, scale = reference.quantize_mxfp8(x, element, 1, 32)
    decoded = reference.dequantize_mxfp8(data, scale, element, 1, 32, F32)
    return Operand("mxfp8", data, scale, element=element), decoded


def _nvfp4(x, rows=1, e4m3_max=448):
    amax = reference.amax(x)
    packed, scale = reference.quantize_nvfp4(x, amax, rows, e4m3_max)
    decoded = reference.dequantize_nvfp4(packed, scale, amax, e4m3_max, F32)[:, : x.shape[1]]
    columns = x.shape[1]
    return Operand("nvfp4", packed, scale, amax, e4m3_max=e4m3_max, columns=columns), decoded


def _nvfp4_rows(x):
    amax = reference.amax_rows(x)
    packed, scale = reference.quantize_nvfp4(x, amax, 1)
    decoded = reference.dequantize_nvfp4(packed, scale, amax, 448, F32)[:, : x.shape[1]]
    return Operand("nvfp4", packed, scale, amax, columns=x.shape[1]), decoded


def _mxfp4(x):
    packed, scale = reference.quantize_mxfp4(x, "rceil")
    decoded = reference.dequantize_mxfp4(packed, scale, F32)[:, : x.shape[1]]
    return Operand("mxfp4", packed, scale, columns=x.shape[1]), decoded


PAIRINGS = {
    "tensor": (_tensor, _tensor),
    "tensor e5m2": (lambda x: _tensor(x, "e5m2"), _tensor),
    "rows": (_rows, _rows),
    "rows x tensor": (_rows, _tensor),
    "block 1d x 1d": (_block, _block),
    "block 1d x 2d": (_block, lambda x: _block(x, 128)),
    "block 2d x 1d e5m2": (lambda x: _block(x, 128), lambda x: _block(x, 1, True, "e5m2")),
    "block fp32 1d x 1d": (lambda x: _block(x, 1, False), lambda x: _block(x, 1, False)),
    "block fp32 1d x 2d": (lambda x: _block(x, 1, False), lambda x: _block(x, 128, False)),
    "block fp32 2d x 1d": (lambda x: _block(x, 128, False), lambda x: _block(x, 1, False)),
    "block fp32 x pow2": (lambda x: _block(x, 1, False), lambda x: _block(x, 128, True)),
    "mxfp8": (_mxfp8, _mxfp8),
    "mxfp8 e5m2": (_mxfp8, lambda x: _mxfp8(x, "e5m2")),
    "nvfp4": (_nvfp4, _nvfp4),
    "nvfp4 1d x 2d": (_nvfp4, lambda x: _nvfp4(x, 16)),
    "nvfp4 256 x 448": (lambda x: _nvfp4(x, 1, 256), _nvfp4),
    "nvfp4 rows": (_nvfp4_rows, _nvfp4),
    "nvfp4 rows x rows": (_nvfp4_rows, _nvfp4_rows),
    "mxfp4": (_mxfp4, _mxfp4),
}


@pytest.fixture(params=PAIRINGS.values(), ids=PAIRINGS.keys())
def pairing(request):
    return request.param


def _assert_close_to_exact(y, left, right):
    """Within a few fp32 roundings of the sum of magnitudes, or what tensor cores keep of it."""
    bound = 2e-4 if y.device.type == "cuda" else 2e-6
    y = y.cpu()
    exact = left.double() @ right.double().t()
    magnitude = left.double().abs() @ right.double().abs().t()
    assert ((y - exact).abs() <= bound * magnitude + 1e-44).all()


def test_every_pairing_multiplies_what_its_operands_stand_for(pairing):
    (left, x), (right, w) = pairing[0](_matrix(M)), pairing[1](_matrix(N, seed=1))
    _assert_close_to_exact(gemm(left, right, F32), x, w)


def _on_cuda(operand):
    tensors, options = operand.pack()
    return Operand.unpack([t.cuda() for t in tensors], options)


@pytest.mark.gpu
def test_every_pairing_on_cuda(pairing):
    (left, x), (right, w) = pairing[0](_matrix(M)), pairing[1](_matrix(N, seed=1))
    y = gemm(_on_cuda(left), _on_cuda(right), F32)
    assert y.device.type == "cuda"
    _assert_close_to_exact(y, x, w)


def test_every_pairing_in_the_cuda_implementation(pairing):
    """What the op runs on CUDA, interpreted on the CPU where there is no device."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    (left, x), (right, w) = pairing[0](_matrix(M)), pairing[1](_matrix(N, seed=1))
    packed = []
    for tensors, options in (left.pack(), right.pack()):
        packed += [[t.to(device) for t in tensors], options]
    y = gemm_module._on_cuda(*packed, F32, None)
    _assert_close_to_exact(y, x, w)


@pytest.mark.parametrize("k", [1, 31, 129])
def test_ragged_sizes(pairing, k):
    (left, x), (right, w) = pairing[0](_matrix(5, k)), pairing[1](_matrix(3, k, seed=1))
    _assert_close_to_exact(gemm(left, right, F32), x, w)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 64), (3, 0, 64), (3, 2, 0)])
def test_empty_sizes(pairing, m, n, k):
    left, right = pairing[0](_matrix(m, k))[0], pairing[1](_matrix(n, k, seed=1))[0]
    assert_bits_equal(gemm(left, right, BF16), torch.zeros(m, n, dtype=BF16))


def test_transposed_views_are_not_copies_of_something_else(pairing):
    """Column-wise data come as views whose rows are strided."""
    left, right = pairing[0](_matrix(M))[0], pairing[1](_matrix(N, seed=1))[0]
    strided = [
        Operand(
            o.format,
            o.data.t().contiguous().t(),
            o.scale.t().contiguous().t() if o.scale.dim() else o.scale,
            o.amax,
            o.element,
            o.e4m3_max,
            o.columns,
        )
        for o in (left, right)
    ]
    assert not strided[0].data.is_contiguous()
    assert_bits_equal(gemm(*strided, F32), gemm(left, right, F32))


def test_opcheck(pairing):
    left, right = pairing[0](_matrix(M))[0], pairing[1](_matrix(N, seed=1))[0]
    for bias in (None, torch.ones(N)):
        arguments = (*left.pack(), *right.pack(), BF16, bias)
        torch.library.opcheck(torch.ops.qrole.quantized_gemm.default, arguments)


def test_compiles_without_a_graph_break(pairing):
    left, right = pairing[0](_matrix(M))[0], pairing[1](_matrix(N, seed=1))[0]
    torch.compiler.reset()
    compiled = torch.compile(gemm, backend="aot_eager", fullgraph=True)
    assert_bits_equal(compiled(left, right, BF16), gemm(left, right, BF16))


def test_columnwise_mxfp8_enters_as_transposed_views():
    """Wgrad: dw = Qcol(dy).T @ Qcol(x), whose data keep the orientation of dy and x."""
    dy, x = _matrix(64, M), _matrix(64, N, seed=1)
    quantized = [reference.quantize_mxfp8(t, "e4m3", 32, 1) for t in (dy, x)]
    left, right = (Operand("mxfp8", data.t(), scale.t()) for data, scale in quantized)
    decoded = (reference.dequantize_mxfp8(*q, "e4m3", 32, 1, F32).t() for q in quantized)
    _assert_close_to_exact(gemm(left, right, F32), *decoded)


def test_bias_is_added_before_the_one_rounding():
    one = torch.ones(())
    left = Operand("fp8_tensor", torch.full((1, 1), 0x38, dtype=torch.uint8), one)
    bias = torch.tensor([2.0**-8])
    # 1 + 2^-8 lies between two bf16 numbers and rounds to even: down to 1, not up by halves.
    assert gemm(left, left, BF16, bias).item() == 1.0
    assert gemm(left, left, F32, bias).item() == 1.0 + 2.0**-8
    # A bias added to an already rounded product would lose the product's last bits.
    right = Operand("fp8_tensor", left.data, torch.tensor(1.0 + 2.0**-8))
    assert gemm(left, right, BF16, torch.tensor([2.0**-8])).item() == 1.0 + 2.0**-7


@pytest.mark.parametrize("dtype", [F32, BF16, torch.float16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_high_precision_is_torchs_linear(dtype, with_bias):
    x, w = _matrix(M, dtype=dtype), _matrix(N, seed=1, dtype=dtype)
    bias = _matrix(1, N, seed=2, dtype=dtype)[0] if with_bias else None
    y = gemm(Operand("high_precision", x), Operand("high_precision", w), dtype, bias)
    assert_bits_equal(y, torch.nn.functional.linear(x, w, bias))


def _mx_operand(bytes_per_block, codes=0x38):
    """One row; every element is `codes` (1.0 as E4M3), scales as given."""
    scale = torch.tensor([bytes_per_block], dtype=torch.uint8)
    data = torch.full((1, 32 * len(bytes_per_block)), codes, dtype=torch.uint8)
    return Operand("mxfp8", data, scale)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        # 2^-100 * 2^-40: a subnormal of fp32, and its factors of bf16's smallest exponents.
        ([27], [87], 32 * 2.0**-140),
        ([7], [247], 32.0),
        ([254], [0], 32.0),
        # The large block of one side meets the small one of the other.
        ([187, 67], [67, 187], 64.0),
        ([227, 27], [17, 227], 32 * 2.0**-10 + 32.0),
        ([0, 0], [127, 127], 64 * 2.0**-127),
    ],
)
def test_extreme_scales_are_neither_flushed_nor_overflow(left, right, expected):
    # Sizes at which matrix units are used.
    big = [
        Operand("mxfp8", o.data.expand(64, -1), o.scale.expand(64, -1))
        for o in (_mx_operand(left), _mx_operand(right))
    ]
    assert_bits_equal(gemm(*big, F32), torch.full((64, 64), expected))


def test_zero_blocks_of_the_smallest_scale_are_harmless():
    data = torch.full((1, 64), 0x38, dtype=torch.uint8)
    data[:, 32:] = 0
    operand = Operand("mxfp8", data, torch.tensor([[227, 0]], dtype=torch.uint8))
    other = _mx_operand([27, 254])
    assert gemm(operand, other, F32).item() == 32.0


def test_nan_scale_makes_its_row_nan():
    left = Operand(
        "mxfp8",
        torch.full((2, 32), 0x38, dtype=torch.uint8),
        torch.tensor([[255], [127]], dtype=torch.uint8),
    )
    y = gemm(left, _mx_operand([127]), F32)
    assert y[0].isnan().all()
    assert y[1].item() == 32.0


@pytest.mark.parametrize(
    ("a_rows", "b_rows", "first_is_right"), [(1, 1, True), (1, 128, False), (128, 1, True)]
)
def test_order_of_the_two_block_scales(kernels, a_rows, b_rows, first_is_right):
    """First comes the scale of the 1x128 side, of the right one if both are; that rounds once."""
    left, right = torch.tensor([[1.1]]), torch.tensor([[0.9]])
    partial = torch.tensor([[6.0 * 128]])
    by_left, by_right = (partial * left) * right, (partial * right) * left
    assert by_left != by_right
    a, b = torch.full((1, 128), 3.0), torch.full((1, 128), 2.0)
    y = kernels.matmul_fp8_block(a, b, left, right, a_rows, b_rows)
    assert_bits_equal(y, by_right if first_is_right else by_left)


def test_blocks_are_added_by_fused_multiply_add(kernels):
    """The product of the second block is not rounded before the sum: its tail decides."""
    a = torch.zeros(1, 256)
    a[0, 0] = a[0, 128] = 1.0
    tail = 1.0 + 2.0**-12
    scale = torch.tensor([[-1.0, tail]])
    other = torch.tensor([[1.0, tail]])
    y = kernels.matmul_fp8_block(a, a, scale, other, 1, 1)
    # tail * tail - 1 = 2^-11 + 2^-24, of which a separate product would lose the last part.
    assert y.item() == 2.0**-11 + 2.0**-24


def test_cpu_tiles_equal_the_reference():
    rows = 2 * cpu_matmul.ROWS_PER_TILE + 3
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-8, 9, (r, 300), generator=generator).float() for r in (rows, 70))
    for a_rows, b_rows in ((1, 1), (1, 128), (128, 1)):
        scales = [
            torch.rand(-(-m // r), 3, generator=generator)
            for m, r in ((rows, a_rows), (70, b_rows))
        ]
        arguments = (a, b, *scales, a_rows, b_rows)
        assert_bits_equal(ops.matmul_fp8_block(*arguments), reference.matmul_fp8_block(*arguments))


def test_precision_setting_is_restored_after_errors():
    setting = torch.backends.mkldnn.matmul
    before = setting.fp32_precision
    with pytest.raises(RuntimeError):
        ops.matmul_f32(torch.zeros(2, 3), torch.zeros(2, 4), True)
    assert setting.fp32_precision == before
    assert torch.get_float32_matmul_precision() == "highest"


def test_threads_do_not_see_each_others_precision():
    """A product that needs fp32 stays exact while others run on bf16 units."""
    fine = torch.full((64, 64), 1.0 + 2.0**-16)
    coarse = torch.ones(64, 64)
    wrong = []

    def run(matrix, bf16_exact):
        for _ in range(50):
            y = ops.matmul_f32(matrix, coarse, bf16_exact)
            if not torch.equal(y, torch.full((64, 64), 64 * matrix[0, 0].item())):
                wrong.append(bf16_exact)

    threads = [
        threading.Thread(target=run, args=(m, e)) for m, e in ((fine, False), (coarse, True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert torch.get_float32_matmul_precision() == "highest"


REFUSED = [
    (_tensor, _mxfp8, "fp8_tensor times mxfp8. Expected two operands of one family"),
    (_nvfp4, _mxfp4, "nvfp4 times mxfp4"),
    (_block, _tensor, "fp8_block_1d times fp8_tensor"),
    (lambda x: (Operand("high_precision", x), x), _tensor, "high_precision times fp8_tensor"),
    (lambda x: _block(x, 128), lambda x: _block(x, 128), "128x128 blocks times 128x128 blocks"),
    (lambda x: _mxfp8(x, "e5m2"), lambda x: _mxfp8(x, "e5m2"), "E5M2 times E5M2"),
    (
        lambda x: (Operand("high_precision", x), x),
        lambda x: (Operand("high_precision", x.float()), x),
        "torch.bfloat16 times torch.float32",
    ),
]


@pytest.mark.parametrize(("left", "right", "message"), REFUSED, ids=[m for *_, m in REFUSED])
def test_pairings_that_have_no_product(left, right, message):
    with pytest.raises(PairingError, match=message):
        gemm(left(_matrix(M))[0], right(_matrix(N))[0], F32)


U8 = torch.uint8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Operand("fp6", torch.zeros(2, 2)), "format='fp6'. Expected one of 'high_prec"),
        (
            lambda: Operand("mxfp8", torch.zeros(2, 32)),
            "one of torch.float32 as data of an operand",
        ),
        (
            lambda: Operand("mxfp8", torch.zeros(2, 32, dtype=U8)),
            "none as scale of an operand mxfp8",
        ),
        (lambda: Operand("mxfp8", torch.zeros(32, dtype=U8)), r"data of shape \(32,\)"),
        (
            lambda: Operand("mxfp8", torch.zeros(2, 64, dtype=U8), torch.zeros(2, 1, dtype=U8)),
            r"scale of shape \(2, 1\). Expected shape \(2, 2\)",
        ),
        (
            lambda: Operand("nvfp4", torch.zeros(2, 8, dtype=U8), torch.zeros(2, 1, dtype=U8)),
            "none as amax of an operand nvfp4",
        ),
        (
            lambda: Operand(
                "nvfp4", torch.zeros(2, 8, dtype=U8), torch.zeros(2, 1, dtype=U8), torch.ones(3)
            ),
            r"amax of shape \(3,\). Expected shape \(2,\)",
        ),
        (
            lambda: Operand(
                "fp8_tensor", torch.zeros(2, 8, dtype=U8), torch.ones(()), element="e2"
            ),
            "element='e2'. Expected one of",
        ),
    ],
)
def test_operands_check_their_invariants(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_packing_loses_nothing(pairing):
    for operand in (pairing[0](_matrix(M))[0], pairing[1](_matrix(N, 31))[0]):
        assert Operand.unpack(*operand.pack()).pack() == operand.pack()
        assert Operand.unpack(*operand.pack()).columns == operand.columns


def test_operands_must_agree_about_k():
    with pytest.raises(ArgumentError, match=r"operands \(40, 272\) and \(24, 64\)"):
        gemm(_tensor(_matrix(M))[0], _tensor(_matrix(N, 64))[0], F32)
