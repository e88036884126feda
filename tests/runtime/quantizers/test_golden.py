"""Quantizers against the known answers: both directions, data, scales and amax, bit for bit."""

import pytest
import torch

from qrole.dtypes import DType
from qrole.quantizers import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    MXFP4Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
)
from tests.kernels import golden
from tests.kernels.bitexact import assert_bits_equal

ELEMENTS = {"e4m3": DType.kFloat8E4M3, "e5m2": DType.kFloat8E5M2}


def _current(element, family):
    return Float8CurrentScalingQuantizer(element, "cpu", force_pow_2_scales="pow2" in family)


def _block(element, family):
    return Float8BlockQuantizer(
        element,
        rowwise=True,
        columnwise=True,
        force_pow_2_scales="pow2" in family,
        block_scaling_dim=2 if "128x128" in family else 1,
    )


def _mxfp8(element, family):
    return MXFP8Quantizer(element, with_2d_quantization="2d" in family)


def _mxfp4(_, family):
    return MXFP4Quantizer(family.removeprefix("mxfp4_"))


def _four_over_six(_, family):
    return NVFP4Quantizer(
        with_2d_quantization="2d" in family,
        nvfp4_use_4over6=True,
        nvfp4_4over6_err_mode="MSE" if "mse" in family else "MAE",
        nvfp4_e4m3_max=448 if "448" in family else 256,
    )


MAKERS = {
    "fp8_current_e4m3": _current,
    "fp8_current_e4m3_pow2": _current,
    "fp8_current_e5m2": _current,
    "fp8_current_e5m2_pow2": _current,
    **dict.fromkeys(golden.families("fp8_block_"), _block),
    "mxfp8_e4m3": _mxfp8,
    "mxfp8_e5m2": _mxfp8,
    "mxfp8_2d_e4m3": _mxfp8,
    **dict.fromkeys(golden.families("mxfp4_"), _mxfp4),
    "nvfp4_1d": lambda *_: NVFP4Quantizer(),
    "nvfp4_2d": lambda *_: NVFP4Quantizer(with_2d_quantization=True),
    "nvfp4_rowscaled": lambda *_: NVFP4Quantizer(row_scaled_nvfp4=True),
    "nvfp4_rht": lambda *_: NVFP4Quantizer(with_rht=True, with_post_rht_amax=True),
    **dict.fromkeys(golden.families("nvfp4_4over6_"), _four_over_six),
}
CASES = [(family, name) for family in MAKERS for name in golden.INDEX[family]]
FIELDS = {
    "rowwise_data": "rowwise_data",
    "rowwise_scale_inv": "rowwise_scale_inv",
    "columnwise_data": "columnwise_data",
    "columnwise_scale_inv": "columnwise_scale_inv",
    "amax_rowwise": "amax_rowwise",
    "amax_columnwise": "amax_columnwise",
    "amax": "amax_rowwise",
    "scale_inv": "rowwise_scale_inv",
}


@pytest.mark.parametrize(("family", "name"), CASES, ids=[f"{f}/{n}" for f, n in CASES])
def test_data_and_scales(family, name):
    case = golden.load(family, name)
    quantized = MAKERS[family](ELEMENTS[case.element], family)(case["input"])
    checked = 0
    for known, attribute in FIELDS.items():
        if known in case:
            expected = case[known]
            made = getattr(quantized, attribute).reshape(expected.shape)
            assert_bits_equal(made, expected, known)
            checked += 1
    assert checked >= 2


@pytest.mark.parametrize(("family", "name"), CASES, ids=[f"{f}/{n}" for f, n in CASES])
def test_dequantized_values(family, name):
    case = golden.load(family, name)
    quantized = MAKERS[family](ELEMENTS[case.element], family)(case["input"])
    for direction in ("rowwise", "columnwise"):
        if f"{direction}_dequant" not in case or (family == "nvfp4_rht" and direction != "rowwise"):
            continue
        made = quantized.dequantize(torch.float32, direction)
        expected = case[f"{direction}_dequant"]
        assert_bits_equal(made if made.shape == expected.shape else made.t(), expected, direction)


@pytest.mark.parametrize("name", golden.INDEX["nvfp4_rht"])
def test_transformed_columns_stay_transformed_for_the_product_and_are_undone_for_people(name):
    from qrole_kernels.gemm import Operand, gemm

    case = golden.load("nvfp4_rht", name)
    quantized = NVFP4Quantizer(with_rht=True, with_post_rht_amax=True)(case["input"])
    operand = quantized.quantizer.operand(
        quantized.columnwise, "columnwise", quantized.matrix_shape
    )
    rotated = case["columnwise_dequant"]
    assert operand.shape == tuple(rotated.shape)
    if not rotated.isfinite().all():
        return
    identity = Operand("nvfp4", *_unit(rotated.shape[1]))
    read = gemm(operand, identity, torch.float32)
    torch.testing.assert_close(read, rotated, rtol=1e-6, atol=0)
    people = quantized.dequantize(torch.float32, "columnwise")
    torch.testing.assert_close(people.norm(), rotated.norm(), rtol=1e-5, atol=0)


def _unit(n):
    """The identity matrix in NVFP4: codes, scales, amax."""
    made = NVFP4Quantizer()(torch.eye(n))
    return made.rowwise_data, made.rowwise_scale_inv, made.amax_rowwise


@pytest.mark.parametrize("name", golden.INDEX["fp8_current_e4m3_eps"])
def test_amax_epsilon(name):
    case = golden.load("fp8_current_e4m3_eps", name)
    quantizer = Float8CurrentScalingQuantizer(
        DType.kFloat8E4M3, "cpu", amax_epsilon=case.params["amax_epsilon"]
    )
    quantized = quantizer(case["input"])
    assert_bits_equal(quantized.rowwise_data, case["rowwise_data"], "data")
    assert_bits_equal(quantized.rowwise_scale_inv.reshape(1), case["scale_inv"], "scale_inv")
    assert_bits_equal(quantized.amax_rowwise.reshape(1), case["amax"], "amax")


@pytest.mark.parametrize("step", ["s0", "s1", "s2", "s3"])
@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
def test_stored_scale(element, step):
    case = golden.load("fp8_delayed_cast", element)
    amax = torch.zeros(1)
    quantizer = Float8Quantizer(case[f"{step}.scale"], amax, ELEMENTS[element])
    quantized = quantizer(case["input"])
    data = case[f"{step}.data"]
    assert_bits_equal(quantized.rowwise_data, data, "data")
    assert_bits_equal(quantized.columnwise_data, data.t().contiguous(), "transposed bytes")
    inverse = case[f"{step}.scale_inv"]
    assert_bits_equal(quantized.rowwise_scale_inv.reshape(1), inverse, "scale_inv")
    assert amax == case["input"].abs().nan_to_num(0.0, posinf=torch.inf).max()
