"""HybridQuantizer: what it joins, where its column-wise data comes from, what it refuses."""

import pytest
import torch

from qrole.dtypes import DType
from qrole.errors import ConfigError, OperandError
from qrole.quantizers import HybridQuantizer, IdentityQuantizer, MXFP8Quantizer, NVFP4Quantizer
from qrole.roles import DelayedScalingRequest, QuantizerRequest

X = torch.randn(32, 64, generator=torch.Generator().manual_seed(0), dtype=torch.bfloat16)


def _mxfp8():
    return MXFP8Quantizer(DType.kFloat8E4M3)


def _hybrid(row, col, source="original"):
    return HybridQuantizer(
        rowwise_quantizer=row, columnwise_quantizer=col, columnwise_source=source
    )


def test_each_side_is_what_its_quantizer_makes():
    quantized = _hybrid(_mxfp8(), NVFP4Quantizer())(X)
    assert torch.equal(quantized.rowwise_data, _mxfp8()(X).rowwise_data)
    nvfp4 = NVFP4Quantizer()(X)
    assert torch.equal(quantized.columnwise_data, nvfp4.columnwise_data)
    assert torch.equal(quantized.columnwise_scale_inv, nvfp4.columnwise_scale_inv)
    assert quantized.amax_columnwise == nvfp4.amax_columnwise
    assert quantized.amax_rowwise is None


def test_equal_sides_are_the_plain_quantizer():
    quantized, plain = _hybrid(_mxfp8(), _mxfp8())(X), _mxfp8()(X)
    for name in ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv"):
        assert torch.equal(getattr(quantized, name), getattr(plain, name))


def test_source_rowwise_dequantized():
    quantizer = _hybrid(_mxfp8(), IdentityQuantizer(), "rowwise_dequantized")
    seen_forward = _mxfp8()(X).dequantize()
    assert torch.equal(quantizer(X).columnwise_data, seen_forward)
    assert not torch.equal(seen_forward, X)
    quantizer.set_usage(rowwise=False)
    backward_only = quantizer(X)
    assert backward_only.rowwise is None
    assert torch.equal(backward_only.columnwise_data, seen_forward)


def test_sides_are_pinned():
    row, col = _mxfp8(), NVFP4Quantizer()
    _hybrid(row, col)
    assert (row.rowwise_usage, row.columnwise_usage) == (True, False)
    assert (col.rowwise_usage, col.columnwise_usage) == (False, True)


def test_copies_share_no_side():
    quantizer = _hybrid(_mxfp8(), NVFP4Quantizer())
    copied = quantizer.copy()
    assert copied == quantizer
    assert copied.rowwise_quantizer is not quantizer.rowwise_quantizer
    assert copied.columnwise_quantizer is not quantizer.columnwise_quantizer


def test_dequantize_prefers_the_rowwise_side():
    quantizer = _hybrid(_mxfp8(), NVFP4Quantizer())
    quantized = quantizer(X)
    assert torch.equal(quantized.dequantize(), _mxfp8()(X).dequantize())
    quantized.update_usage(rowwise_usage=False)
    expected = NVFP4Quantizer()(X).dequantize(direction="columnwise")
    assert torch.equal(quantized.dequantize(), expected)


def test_description_is_nested():
    assert _hybrid(_mxfp8(), IdentityQuantizer()).describe() == {
        "quantizer": "HybridQuantizer",
        "rowwise_quantizer": {
            "quantizer": "MXFP8Quantizer",
            "fp8_dtype": "kFloat8E4M3",
            "with_2d_quantization": False,
        },
        "columnwise_quantizer": {"quantizer": "IdentityQuantizer", "dtype": None},
        "columnwise_source": "original",
    }


@pytest.mark.parametrize("request_", [DelayedScalingRequest(), QuantizerRequest()], ids=repr)
def test_a_request_as_a_side(request_):
    with pytest.raises(OperandError, match=r"rowwise_quantizer is a .*Request"):
        _hybrid(request_, _mxfp8())
    with pytest.raises(TypeError, match=r"columnwise_quantizer is a .*Request"):
        _hybrid(_mxfp8(), request_)


def test_no_quantizer_as_a_side():
    with pytest.raises(OperandError, match="columnwise_quantizer is <class"):
        _hybrid(_mxfp8(), NVFP4Quantizer)


def test_one_object_as_both_sides():
    side = _mxfp8()
    with pytest.raises(ConfigError, match="one and the same object"):
        _hybrid(side, side)


def test_unknown_source():
    with pytest.raises(ConfigError, match="columnwise_source='rowwise'"):
        _hybrid(_mxfp8(), _mxfp8(), "rowwise")


def test_a_side_is_checked_in_use():
    broken = NVFP4Quantizer(row_scaled_nvfp4=True, stochastic_rounding=True)
    with pytest.raises(ConfigError, match="row_scaled_nvfp4=True together with"):
        _hybrid(broken, _mxfp8())(X)
