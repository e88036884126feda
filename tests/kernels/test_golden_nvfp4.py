"""Known answers of NVFP4 and its options."""

import torch

from tests.kernels import golden
from tests.kernels.bitexact import assert_bits_equal
from tests.kernels.te_python import assert_explained


def _check_direction(case, kernels, direction, x, amax, block_rows=1):
    assert_bits_equal(amax.reshape(-1), case[f"amax_{direction}"], f"{direction} amax")
    data, scale = kernels.quantize_nvfp4(x, amax, block_rows)
    assert_bits_equal(data, case[f"{direction}_data"], f"{direction} data")
    assert_bits_equal(scale, case[f"{direction}_scale_inv"], f"{direction} scale")
    dequantized = kernels.dequantize_nvfp4(data, scale, amax, 448, torch.float32)
    expected = case[f"{direction}_dequant"]
    assert_bits_equal(dequantized[:, : x.shape[1]], expected, f"{direction} dequant")


def _check_te_python(case, x, amax_block, direction="rowwise"):
    if f"te_py.{direction}_data" not in case:
        return
    ours = case[f"{direction}_data"], case[f"{direction}_scale_inv"]
    theirs = case[f"te_py.{direction}_data"], case[f"te_py.{direction}_scale_inv"]
    assert_explained(x, ours, theirs, amax_block, (1, 16))
    if "te_py.amax_rowwise" in case:
        amax = case["te_py.amax_rowwise"]
        assert_bits_equal(amax, x.float().abs().reshape(amax.shape[0], -1).amax(1), "te_py amax")


@golden.cases("nvfp4_1d")
def test_rows_and_columns(case, kernels):
    x = case["input"]
    _check_direction(case, kernels, "rowwise", x, kernels.amax(x))
    if "columnwise_data" in case:
        _check_direction(case, kernels, "columnwise", x.t(), kernels.amax(x))
    else:
        assert x.shape[0] == 1
    _check_te_python(case, x, tuple(x.shape))


@golden.cases("nvfp4_2d")
def test_square_blocks(case, kernels):
    x = case["input"]
    _check_direction(case, kernels, "rowwise", x, kernels.amax(x), 16)
    _check_direction(case, kernels, "columnwise", x.t(), kernels.amax(x), 16)
    _check_te_python(case, x, tuple(x.shape))


@golden.cases("nvfp4_rowscaled")
def test_one_amax_per_row(case, kernels):
    x = case["input"]
    _check_direction(case, kernels, "rowwise", x, kernels.amax_rows(x))
    _check_direction(case, kernels, "columnwise", x.t(), kernels.amax_rows(x.t()))
    _check_te_python(case, x, (1, x.shape[1]))


@golden.cases("nvfp4_rht")
def test_hadamard_transformed_columns(case, kernels):
    x = case["input"]
    transformed = kernels.hadamard16(x.t())
    assert_bits_equal(transformed.float(), case["rht_input_t"], "transformed")
    _check_direction(case, kernels, "rowwise", x, kernels.amax(x))
    _check_direction(case, kernels, "columnwise", transformed, kernels.amax(transformed))
    if "te_py.columnwise_data" in case:
        assert_bits_equal(case["te_py.rht_input_t"], transformed.float(), "te_py transformed")
        _check_te_python(case, transformed, tuple(transformed.shape), "columnwise")


@golden.cases(*golden.families("nvfp4_4over6"))
def test_four_over_six(case, kernels):
    x, params = case["input"], case.params
    e4m3_max, block_rows = params["e4m3_max"], 16 if params["two_d"] else 1
    amax = kernels.amax(x)
    assert_bits_equal(amax.view(1), case["amax_rowwise"], "amax")
    error = params["err_mode"].lower()
    data, scale = kernels.quantize_nvfp4(x, amax, block_rows, e4m3_max, error)
    assert_bits_equal(data, case["rowwise_data"], "data")
    assert_bits_equal(scale, case["rowwise_scale_inv"], "scale")
    dequantized = kernels.dequantize_nvfp4(data, scale, amax, e4m3_max, torch.float32)
    assert_bits_equal(dequantized, case["rowwise_dequant"], "dequant")
    _check_te_python(case, x, tuple(x.shape))
    plain = kernels.quantize_nvfp4(x, amax, block_rows, e4m3_max)[1]
    _check_picks(scale, plain, case["picked_map4"].bool())


def _check_picks(scale, plain, picked):
    """A block that maps to four has about 1.5 times the plain scale, any other about the same."""
    ratio = scale.view(torch.float8_e4m3fn).float() / plain.view(torch.float8_e4m3fn).float()
    normal = (plain >= 0x08) & (plain < 0x70)
    assert ((ratio > 1.3) == picked)[normal].all()
