"""Known answers of FP8 with 1x128 and 128x128 blocks."""

import torch

from qrole_kernels.layout import gemm_fp8_block_scales
from tests.kernels import golden
from tests.kernels.bitexact import assert_bits_equal
from tests.kernels.te_python import assert_explained


@golden.cases(*golden.families("fp8_block"))
def test_block_scaling(case, kernels):
    block_rows = 128 if case.info["format"].endswith("128x128") else 1
    x, element = case["input"], case.element
    power_of_two, epsilon = case.params["force_pow_2_scales"], case.params["amax_epsilon"]
    for direction, matrix in (("rowwise", x), ("columnwise", x.t())):
        data, scale_inv = kernels.quantize_fp8_block(
            matrix, element, block_rows, power_of_two, epsilon
        )
        assert_bits_equal(data, case[f"{direction}_data"], f"{direction} data")
        assert_bits_equal(scale_inv, case[f"{direction}_scale_inv"], f"{direction} scale_inv")
        stored = gemm_fp8_block_scales(scale_inv, block_rows)
        assert_bits_equal(stored, case[f"{direction}_scale_inv_gemm"], f"{direction} GEMM scales")
    dequantized = kernels.dequantize_fp8_block(
        case["rowwise_data"], case["rowwise_scale_inv"], element, block_rows, torch.float32
    )
    assert_bits_equal(dequantized, case["rowwise_dequant"], "dequant")
    if "te_py.rowwise_data" in case:
        block = (block_rows, 128)
        ours = case["rowwise_data"], case["rowwise_scale_inv"]
        theirs = case["te_py.rowwise_data"], case["te_py.rowwise_scale_inv"]
        assert_explained(x, ours, theirs, block, block)
