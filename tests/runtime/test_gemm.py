"""fprop, dgrad and wgrad: which data they read, what may meet, who multiplies."""

import dataclasses

import pytest
import torch

from qrole import gemm
from qrole.dtypes import DType
from qrole.errors import OperandError
from qrole.factories import builtin, reference, zoo
from qrole.quantizers import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    HybridQuantizer,
    IdentityQuantizer,
    MXFP4Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    OperandFormat,
    QuantizedTensorStorage,
    Quantizer,
)
from qrole.recipes import CustomRecipe
from qrole.roles import QuantizerRole
from qrole.state import RecipeState

E4M3, E5M2 = DType.kFloat8E4M3, DType.kFloat8E5M2
FACTORIES = {
    name: getattr(module, name)
    for module in (builtin, zoo, reference)
    for name in module.__all__
    if name.endswith("_factory")
}
M, K, N = 48, 64, 96


def _random(*shape, dtype=torch.bfloat16, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


X, W, DY = _random(M, K), _random(N, K, seed=1), _random(M, N, seed=2)


def _role(tensor_type):
    return QuantizerRole("grouped_linear", tensor_type, "experts")


def _quantized(factory, x=X, w=W, dy=DY):
    """The three operands as a layer's states quantize them."""
    recipe = CustomRecipe(factory)
    forward = RecipeState.create(
        recipe, mode="forward", num_quantizers=2, roles=[_role("input"), _role("weight")]
    ).make_quantizers()
    backward = RecipeState.create(
        recipe, mode="backward", num_quantizers=1, roles=[_role("grad_output")]
    ).make_quantizers()
    return forward[0](x), forward[1](w), backward[0](dy)


def _three(x, w, dy, **options):
    return (
        gemm.fprop(x, w, **options),
        gemm.dgrad(dy, w, **options),
        gemm.wgrad(dy, x, **options),
    )


def _values(quantized, direction):
    return quantized.dequantize(torch.float32, direction)


@pytest.mark.parametrize("name", FACTORIES)
def test_products_of_what_the_operands_stand_for(name):
    torch.manual_seed(0)
    x, w, dy = _quantized(FACTORIES[name])
    expected = (
        _values(x, "rowwise") @ _values(w, "rowwise").t(),
        _values(dy, "rowwise") @ _values(w, "columnwise"),
        _values(dy, "columnwise").t() @ _values(x, "columnwise"),
    )
    for made, right in zip(_three(x, w, dy, out_dtype=torch.float32), expected, strict=True):
        assert made.dtype == torch.float32
        torch.testing.assert_close(made, right, rtol=1e-4, atol=1e-4 * float(right.abs().max()))


@pytest.mark.parametrize("name", FACTORIES)
def test_shapes_and_dtypes_of_results(name):
    x, w, dy = _quantized(FACTORIES[name], X.reshape(2, 24, K), W, DY.reshape(2, 24, N))
    y, dx, dw = _three(x, w, dy)
    assert (y.shape, dx.shape, dw.shape) == ((2, 24, N), (2, 24, K), (N, K))
    assert y.dtype == dx.dtype == dw.dtype == torch.bfloat16


@pytest.mark.parametrize("tokens", [0, 1, 17])
@pytest.mark.parametrize("name", FACTORIES)
def test_any_number_of_tokens(name, tokens):
    torch.manual_seed(0)
    x, w, dy = _quantized(FACTORIES[name], X[:tokens], W, DY[:tokens])
    y, dx, dw = _three(x, w, dy)
    assert (y.shape, dx.shape, dw.shape) == ((tokens, N), (tokens, K), (N, K))
    assert y.isfinite().all()
    assert dw.isfinite().all()
    if tokens == 0:
        assert not dw.any()


def test_high_precision_is_torchs_linear_layer_bit_for_bit():
    layer = torch.nn.Linear(K, N, dtype=torch.bfloat16)
    x = X.clone().requires_grad_()
    expected = layer(x)
    expected.backward(DY)
    w, bias = layer.weight.detach(), layer.bias.detach()
    for identity in (lambda t: t, IdentityQuantizer()):
        qx, qw, qdy = identity(X), identity(w), identity(DY)
        assert torch.equal(gemm.fprop(qx, qw, bias), expected)
        assert torch.equal(gemm.dgrad(qdy, qw), x.grad)
        assert torch.equal(gemm.wgrad(qdy, qx), layer.weight.grad)


def test_bias_is_added_before_the_result_is_rounded():
    x, w, _ = _quantized(builtin.mxfp8_factory)
    bias = _random(N, seed=3)
    exact = gemm.fprop(x, w, out_dtype=torch.float32) + bias.float()
    assert torch.equal(gemm.fprop(x, w, bias), exact.to(torch.bfloat16))


@pytest.mark.parametrize("name", [n for n in FACTORIES if "nvfp4_factory" not in n])
def test_equal_operands_give_equal_results(name):
    def run():
        torch.manual_seed(5)
        return _three(*_quantized(FACTORIES[name]))

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


def test_gradients_with_stochastic_rounding_are_unbiased_beyond_constants():
    """A constant gradient is exact in NVFP4; this one is not, and its rounding averages out."""
    _, w, _ = _quantized(builtin.nvfp4_factory)
    exact = DY.float() @ _values(w, "columnwise")
    draws = torch.stack(
        [
            gemm.dgrad(_quantized(builtin.nvfp4_factory)[2], w, out_dtype=torch.float32)
            for _ in range(64)
        ]
    )
    assert draws.std(0).min() > 0
    one, mean = (draws[0] - exact).norm(), (draws.mean(0) - exact).norm()
    assert mean < 0.3 * one


def test_the_transform_cancels_in_wgrad():
    plain = NVFP4Quantizer()
    rht = NVFP4Quantizer(with_rht=True, with_post_rht_amax=True)
    exact = DY.float().t() @ X.float()

    def error(quantizer):
        made = gemm.wgrad(quantizer(DY), quantizer.copy()(X), out_dtype=torch.float32)
        return float((made - exact).norm() / exact.norm())

    assert error(plain) < 0.2
    assert error(rht) < 0.2


@pytest.mark.parametrize("tokens", [48, 21])
def test_a_transform_on_one_side_only_is_multiplied_and_wrong(tokens):
    rht = NVFP4Quantizer(with_rht=True, with_post_rht_amax=True)
    dy, x = DY[:tokens], X[:tokens]
    made = gemm.wgrad(rht(dy), NVFP4Quantizer()(x), out_dtype=torch.float32)
    exact = dy.float().t() @ x.float()
    assert made.shape == exact.shape
    assert (made - exact).norm() > exact.norm()
    flipped = gemm.wgrad(NVFP4Quantizer()(dy), rht(x), out_dtype=torch.float32)
    assert (flipped - exact).norm() > exact.norm()


def test_row_scaled_meets_tensor_scaled():
    x = NVFP4Quantizer(row_scaled_nvfp4=True)(X)
    w = NVFP4Quantizer()(W)
    expected = _values(x, "rowwise") @ _values(w, "rowwise").t()
    made = gemm.fprop(x, w, out_dtype=torch.float32)
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-3)


def _block(dim):
    return Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True, block_scaling_dim=dim)


MEET = {
    "fp8": (
        lambda: Float8CurrentScalingQuantizer(E4M3, "cpu"),
        lambda: Float8CurrentScalingQuantizer(E5M2, "cpu"),
    ),
    "block_1d_2d": (lambda: _block(1), lambda: _block(2)),
    "block_1d_1d": (lambda: _block(1), lambda: _block(1)),
    "mxfp8": (
        lambda: MXFP8Quantizer(E5M2),
        lambda: MXFP8Quantizer(E4M3, with_2d_quantization=True),
    ),
    "mxfp4": (lambda: MXFP4Quantizer("floor"), lambda: MXFP4Quantizer("even")),
    "nvfp4": (
        NVFP4Quantizer,
        lambda: NVFP4Quantizer(nvfp4_use_4over6=True, nvfp4_e4m3_max=256),
    ),
}


@pytest.mark.parametrize("pair", MEET)
def test_formats_of_one_family_meet(pair):
    left, right = (make() for make in MEET[pair])
    x, w, dy = left(X), right(W), left.copy()(DY)
    expected = _values(x, "rowwise") @ _values(w, "rowwise").t()
    torch.testing.assert_close(
        gemm.fprop(x, w, out_dtype=torch.float32), expected, rtol=1e-4, atol=1e-3
    )
    assert gemm.dgrad(dy, w).shape == (M, K)


REFUSED = {
    "identity_mxfp8": (
        IdentityQuantizer,
        lambda: MXFP8Quantizer(E4M3),
        "high_precision does not multiply with mxfp8",
    ),
    "current_identity": (
        lambda: Float8CurrentScalingQuantizer(E4M3, "cpu"),
        IdentityQuantizer,
        "fp8_tensor does not multiply with high_precision",
    ),
    "mxfp8_nvfp4": (lambda: MXFP8Quantizer(E4M3), NVFP4Quantizer, "mxfp8 does not multiply"),
    "current_block": (
        lambda: Float8CurrentScalingQuantizer(E4M3, "cpu"),
        lambda: _block(1),
        "fp8_tensor does not multiply with fp8_block",
    ),
    "block_2d_2d": (lambda: _block(2), lambda: _block(2), "blocks of 128x128 do not multiply"),
    "e5m2_e5m2": (
        lambda: Float8CurrentScalingQuantizer(E5M2, "cpu"),
        lambda: Float8CurrentScalingQuantizer(E5M2, "cpu"),
        "E5M2 does not multiply with E5M2",
    ),
    "reference_native": (
        lambda: reference.nvfp4_ref_rht_2d_factory(None),
        NVFP4Quantizer,
        "data of a Python reference multiplies with data of a Python reference only",
    ),
}


@pytest.mark.parametrize("pair", REFUSED)
def test_formats_that_cannot_meet(pair):
    left, right, reason = REFUSED[pair]
    with pytest.raises(OperandError, match=reason) as caught:
        gemm.fprop(left()(X), right()(W))
    assert caught.value.given.startswith("fprop of ")
    assert "qrole audit" in caught.value.hint


def test_a_plain_tensor_is_in_high_precision():
    with pytest.raises(OperandError, match="a plain tensor"):
        gemm.dgrad(DY, MXFP8Quantizer(E4M3)(W))


def test_the_directions_decide_not_the_quantizers():
    """Equal families forward, unequal ones backward."""
    hybrid = HybridQuantizer(
        rowwise_quantizer=MXFP8Quantizer(E4M3), columnwise_quantizer=NVFP4Quantizer()
    )
    w, mxfp8 = hybrid(W), MXFP8Quantizer(E4M3)
    assert gemm.fprop(mxfp8(X), w).shape == (M, N)
    with pytest.raises(OperandError, match="dgrad of MXFP8 E4M3"):
        gemm.dgrad(mxfp8(DY), w)
    assert gemm.dgrad(NVFP4Quantizer()(DY), w).shape == (M, K)


def test_a_representation_that_was_not_made():
    w = MXFP8Quantizer(E4M3, columnwise=False)(W)
    with pytest.raises(OperandError, match=r"set_usage\(columnwise=True\)"):
        gemm.dgrad(MXFP8Quantizer(E4M3)(DY), w)


def test_incompatibility_is_symmetric_for_every_pair_of_formats():
    formats = [OperandFormat("high_precision")]
    for make in FACTORIES.values():
        for quantized in _quantized(make):
            formats += [quantized.format_of("rowwise"), quantized.format_of("columnwise")]
    for a in formats:
        for b in formats:
            assert bool(gemm.incompatibility(a, b)) == bool(gemm.incompatibility(b, a))


@dataclasses.dataclass
class HalvesData(QuantizedTensorStorage):
    """Data as quantizer classes written for TransformerEngine keep it."""

    data: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    data_t: torch.Tensor | None = None
    scale_t: torch.Tensor | None = None
    dtype: torch.dtype | None = None
    original_shape: tuple[int, ...] | None = None
    _quantizer: Quantizer | None = None


class Halves(Quantizer):
    """Rounds to multiples of a half and multiplies by itself."""

    custom = True

    def __init__(self):
        super().__init__(rowwise=True, columnwise=True)
        self.asked = []

    def quantize_impl(self, tensor):
        codes = (tensor.reshape(-1, tensor.shape[-1]).float() * 2).round()
        half = torch.tensor(0.5)
        return HalvesData(
            codes if self.rowwise_usage else None,
            half if self.rowwise_usage else None,
            codes.t() if self.columnwise_usage else None,
            half if self.columnwise_usage else None,
            tensor.dtype,
            tuple(tensor.shape),
            self,
        )

    def qgemm(
        self, qx, qw, m_params, out_dtype, sx, sw, bias=None, out=None, accumulate=False,
        gemm_type=None, qresult_x=None, qresult_w=None,
    ):  # fmt: skip
        self.asked.append((gemm_type.name, m_params.use_split_accumulator))
        y = (qx * sx) @ (qw * sw).t()
        return (y if bias is None else y + bias).to(out_dtype)


def test_a_users_own_quantizer_multiplies_by_itself():
    quantizer = Halves()
    x, w, dy = (quantizer(t) for t in (X.reshape(2, 24, K), W, DY.reshape(2, 24, N)))
    halves = [(t.float() * 2).round() / 2 for t in (X, W, DY)]
    bias = _random(N, seed=3)
    y = gemm.fprop(x, w, bias)
    assert y.shape == (2, 24, N)
    assert torch.equal(y.flatten(0, 1), (halves[0] @ halves[1].t() + bias).bfloat16())
    assert torch.equal(gemm.dgrad(dy, w).flatten(0, 1), (halves[2] @ halves[1]).bfloat16())
    assert torch.equal(gemm.wgrad(dy, x), (halves[2].t() @ halves[0]).bfloat16())
    assert quantizer.asked == [("FPROP", False), ("DGRAD", True), ("WGRAD", True)]


def test_a_users_own_quantizer_meets_its_kind_only():
    with pytest.raises(OperandError, match="HalvesData and NVFP4"):
        gemm.fprop(Halves()(X), NVFP4Quantizer()(W))


def test_data_of_a_direction_that_was_not_made():
    quantizer = Halves()
    quantizer.set_usage(columnwise=False)
    with pytest.raises(OperandError, match=r"dgrad of a HalvesData without column-wise"):
        gemm.dgrad(quantizer(DY), quantizer(W))
    orphan = dataclasses.replace(quantizer(X), _quantizer=None)
    with pytest.raises(OperandError, match="_quantizer is the quantizer that made it"):
        gemm.fprop(orphan, dataclasses.replace(quantizer(W), _quantizer=None))
