"""Known answers of MXFP4 under its three scale rules."""

import torch

from qrole_kernels.reference.blocks import expand_blocks
from tests.kernels import golden
from tests.kernels.bitexact import assert_bits_equal
from tests.kernels.te_python import assert_explained


@golden.cases(*golden.families("mxfp4"))
def test_mxfp4(case, kernels):
    data, scale = kernels.quantize_mxfp4(case["input"], case.params["scale_mode"])
    assert_bits_equal(data, case["rowwise_data"], "data")
    assert_bits_equal(scale, case["rowwise_scale_inv"], "scale")
    dequantized = kernels.dequantize_mxfp4(data, scale, torch.float32)
    assert_bits_equal(dequantized, case["rowwise_dequant"], "dequant")
    if "te_py.rowwise_data" in case:
        _check_te_python(case)


def _check_te_python(case):
    """TE's branch takes an fp32 log2, which misses the exponent just beside powers of two."""
    x, scale, theirs = case["input"], case["rowwise_scale_inv"], case["te_py.rowwise_scale_inv"]
    missed = (scale != theirs) & x.view(*scale.shape, 32).isfinite().all(2)
    assert (scale.int() - theirs.int()).abs()[missed].le(1).all()
    assert missed.any() == (case.info["case"] == "pow2edge")
    data_missed = expand_blocks(missed, 1, 16, case["rowwise_data"].shape)
    ours = case["rowwise_data"].masked_fill(data_missed, 0), scale.masked_fill(missed, 0)
    other = case["te_py.rowwise_data"].masked_fill(data_missed, 0), theirs.masked_fill(missed, 0)
    assert_explained(x, ours, other, (1, 32), (1, 32))
