"""Known answers of MXFP8: rows, columns and square blocks."""

import torch

from tests.kernels import golden
from tests.kernels.bitexact import assert_bits_equal
from tests.kernels.te_python import assert_explained


@golden.cases("mxfp8_e4m3", "mxfp8_e5m2")
def test_rows_and_columns(case, kernels):
    for direction, block in (("rowwise", (1, 32)), ("columnwise", (32, 1))):
        data, scale = kernels.quantize_mxfp8(case["input"], case.element, *block)
        assert_bits_equal(data, case[f"{direction}_data"], f"{direction} data")
        assert_bits_equal(scale, case[f"{direction}_scale_inv"], f"{direction} scale")
        dequantized = kernels.dequantize_mxfp8(data, scale, case.element, *block, torch.float32)
        assert_bits_equal(dequantized, case[f"{direction}_dequant"], f"{direction} dequant")


@golden.cases("mxfp8_2d_e4m3")
def test_square_blocks(case, kernels):
    x = case["input"]
    data, scale = kernels.quantize_mxfp8(x, case.element, 32, 32)
    assert_bits_equal(scale, case["block_scale"], "block scale")
    for direction in ("rowwise", "columnwise"):
        assert_bits_equal(data, case[f"{direction}_data"], f"{direction} data")
    tall, wide = scale.repeat_interleave(32, 0), scale.repeat_interleave(32, 1)
    assert_bits_equal(tall[: x.shape[0]], case["rowwise_scale_inv"], "row-wise scale")
    assert_bits_equal(wide[:, : x.shape[1]], case["columnwise_scale_inv"], "column-wise scale")
    dequantized = kernels.dequantize_mxfp8(data, scale, case.element, 32, 32, torch.float32)
    assert_bits_equal(dequantized, case["rowwise_dequant"], "dequant")
    if "te_py.rowwise_data" in case:
        ours = case["rowwise_data"], case["rowwise_scale_inv"]
        theirs = case["te_py.rowwise_data"], case["te_py.rowwise_scale_inv"]
        assert_explained(x, ours, theirs, (32, 32), (1, 32))
