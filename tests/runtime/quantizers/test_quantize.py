"""What holds for every family: usage, shapes, copies, in-place updates, no gradients."""

import pytest
import torch

from qrole.dtypes import DType
from qrole.errors import OperandError
from qrole.quantizers import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    HybridQuantizer,
    IdentityQuantizer,
    MXFP4Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    Quantizer,
)

E4M3 = DType.kFloat8E4M3
FAMILIES = {
    "identity": IdentityQuantizer,
    "current": lambda: Float8CurrentScalingQuantizer(E4M3, "cpu"),
    "delayed": lambda: Float8Quantizer(torch.ones(()), torch.zeros(()), E4M3),
    "block_1d": lambda: Float8BlockQuantizer(
        E4M3, rowwise=True, columnwise=True, block_scaling_dim=1
    ),
    "block_2d": lambda: Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True),
    "mxfp8": lambda: MXFP8Quantizer(E4M3),
    "mxfp8_2d": lambda: MXFP8Quantizer(E4M3, with_2d_quantization=True),
    "mxfp4": MXFP4Quantizer,
    "nvfp4": NVFP4Quantizer,
    "nvfp4_2d": lambda: NVFP4Quantizer(with_2d_quantization=True),
    "nvfp4_rht": lambda: NVFP4Quantizer(with_rht=True, with_post_rht_amax=True),
    "nvfp4_row_scaled": lambda: NVFP4Quantizer(row_scaled_nvfp4=True),
    "nvfp4_4over6_2d": lambda: NVFP4Quantizer(nvfp4_use_4over6=True, with_2d_quantization=True),
    "hybrid": lambda: HybridQuantizer(
        rowwise_quantizer=MXFP8Quantizer(E4M3),
        columnwise_quantizer=NVFP4Quantizer(),
        columnwise_source="rowwise_dequantized",
    ),
}
#: One rounding of an element with few bits: half a unit in the last place, a bit more for scales.
TOLERANCE = {"identity": 0.0, "current": 0.07, "delayed": 0.07, "block_1d": 0.07, "block_2d": 0.07}


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def quantizer(family):
    return FAMILIES[family]()


def _random(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "shape", [(64, 32), (2, 16, 32), (3, 5, 7), (17,), (0, 32), (1, 1)], ids=str
)
def test_shape_and_dtype_come_back(quantizer, shape, dtype):
    x = _random(*shape, dtype=dtype)
    quantized = quantizer(x)
    assert quantized.shape == x.shape
    assert quantized.dtype == dtype
    for direction in ("rowwise", "columnwise"):
        back = quantized.dequantize(direction=direction)
        assert back.shape == x.shape
        assert back.dtype == dtype
    assert quantized.dequantize(torch.float32).dtype == torch.float32


def test_both_directions_stand_for_the_tensor(quantizer, family):
    x = _random(64, 128)
    quantized = quantizer(x)
    limit = TOLERANCE.get(family, 0.2)
    for direction in ("rowwise", "columnwise"):
        error = (quantized.dequantize(direction=direction) - x).norm() / x.norm()
        assert error <= limit


def test_equal_values_where_the_format_says_so(quantizer, family):
    wide = _random(48, 64) * torch.exp2(8 * _random(64, 48).t())
    quantized = quantizer(wide)
    same = torch.equal(quantized.dequantize(), quantized.dequantize(direction="columnwise"))
    squares = {"block_2d", "mxfp8_2d", "nvfp4_2d", "nvfp4_4over6_2d"}
    assert same == (family in squares | {"identity", "current", "delayed"})


def test_usage_decides_what_is_made(quantizer):
    x = _random(32, 32)
    both = quantizer(x)
    quantizer.set_usage(columnwise=False)
    assert quantizer(x).columnwise is None
    assert torch.equal(quantizer(x).rowwise_data, both.rowwise_data)
    quantizer.set_usage(rowwise=False, columnwise=True)
    alone = quantizer(x)
    assert alone.rowwise is None
    assert torch.equal(alone.columnwise_data, both.columnwise_data)
    assert torch.equal(alone.dequantize(), both.dequantize(direction="columnwise"))
    with pytest.raises(OperandError, match="has no rowwise data"):
        alone.dequantize(direction="rowwise")


def test_leading_dimensions_are_flattened(quantizer):
    x = _random(2, 16, 32)
    deep, flat = quantizer(x), quantizer.copy()(x.reshape(32, 32))
    assert torch.equal(deep.rowwise_data, flat.rowwise_data)
    assert torch.equal(deep.columnwise_data, flat.columnwise_data)


def test_copy_has_usage_of_its_own(quantizer):
    copied = quantizer.copy()
    copied.set_usage(rowwise=False)
    assert quantizer.rowwise_usage
    assert copied == quantizer


def test_gradients_do_not_flow(quantizer):
    x = _random(16, 32).requires_grad_()
    assert not quantizer(x).dequantize().requires_grad


def test_strided_input(quantizer):
    x = _random(32, 64)
    assert torch.equal(
        quantizer(x.t()).dequantize(), quantizer.copy()(x.t().contiguous()).dequantize()
    )


def test_update_writes_into_the_buffers_that_are_there(quantizer):
    empty = quantizer.make_empty((32, 64), dtype=torch.bfloat16, device="cuda")
    assert torch.equal(empty.dequantize(), torch.zeros(32, 64, dtype=torch.bfloat16))
    empty.update_usage(columnwise_usage=False)
    data = empty.rowwise_data
    x = _random(32, 64, dtype=torch.bfloat16)
    assert quantizer.quantize(x, out=empty) is empty
    assert empty.rowwise_data is data
    assert torch.equal(empty.dequantize(), quantizer(x).dequantize())
    assert empty.columnwise is None
    quantizer.update_quantized(torch.zeros_like(x), empty, noop_flag=torch.ones(1))
    assert torch.equal(empty.dequantize(), quantizer(x).dequantize())


def test_a_dropped_direction_is_gone(quantizer):
    quantized = quantizer(_random(16, 16))
    quantized.update_usage(rowwise_usage=False)
    assert quantized.rowwise_data is None
    with pytest.raises(OperandError, match=r"set_usage\(rowwise=True\)"):
        quantized.update_usage(rowwise_usage=True)


def test_a_quantized_tensor_is_dequantized_first(quantizer):
    quantized = quantizer(_random(16, 32))
    again = quantizer.copy()(quantized)
    assert torch.equal(again.rowwise_data, quantizer.copy()(quantized.dequantize()).rowwise_data)


def test_identity_keeps_one_buffer_for_both_directions():
    x = _random(8, 8)
    quantized = IdentityQuantizer()(x)
    assert quantized.rowwise_data.data_ptr() == quantized.columnwise_data.data_ptr() == x.data_ptr()
    cast = IdentityQuantizer(dtype=torch.bfloat16)(x)
    assert cast.rowwise_data.dtype == torch.bfloat16
    assert torch.equal(cast.dequantize(), x.bfloat16().float())


class _Halves(Quantizer):
    """A quantizer class as users of TransformerEngine write them."""

    def __init__(self, step):
        super().__init__(rowwise=True, columnwise=True)
        self.step = step

    def quantize_impl(self, tensor):
        return ("made by the user's code", self.step, tensor.shape)


def test_a_users_own_class():
    quantizer = _Halves(0.5)
    assert quantizer(torch.ones(2, 3)) == ("made by the user's code", 0.5, (2, 3))
    assert quantizer.rowwise_format.family == "custom"
    assert quantizer.label == "_Halves"
    assert quantizer == _Halves(0.5)
    assert quantizer != _Halves(0.25)
    assert quantizer.describe() == {"quantizer": "_Halves", "step": 0.5}


def test_a_class_that_implements_nothing():
    class Nothing(Quantizer):
        pass

    with pytest.raises(OperandError, match="Nothing has no method quantize_impl"):
        Nothing(rowwise=True, columnwise=True)(torch.ones(1))


@pytest.mark.gpu
def test_cuda_makes_the_same_bits(quantizer):
    wide = _random(48, 80) * torch.exp2(8 * _random(80, 48).t())
    here, there = quantizer(wide), quantizer.copy()(wide.cuda())
    for name in ("rowwise", "columnwise"):
        ours, theirs = here.representation(name), there.representation(name)
        assert theirs.data.device.type == "cuda"
        for field in ("data", "scale_inv", "amax"):
            a, b = getattr(ours, field), getattr(theirs, field)
            assert (a is None and b is None) or torch.equal(a, b.cpu())
        assert torch.equal(here.dequantize(direction=name), there.dequantize(direction=name).cpu())
