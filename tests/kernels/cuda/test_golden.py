"""The known answers, by the Triton kernels: the tests of the reference with these `kernels`."""

from tests.kernels.test_golden_fp8 import test_cast_with_a_given_scale, test_current_scaling
from tests.kernels.test_golden_fp8_block import test_block_scaling
from tests.kernels.test_golden_layout import test_padded_and_swizzled
from tests.kernels.test_golden_mxfp4 import test_mxfp4
from tests.kernels.test_golden_mxfp8 import test_rows_and_columns as test_mxfp8
from tests.kernels.test_golden_mxfp8 import test_square_blocks as test_mxfp8_square_blocks
from tests.kernels.test_golden_nvfp4 import (
    test_four_over_six,
    test_hadamard_transformed_columns,
    test_one_amax_per_row,
)
from tests.kernels.test_golden_nvfp4 import test_rows_and_columns as test_nvfp4
from tests.kernels.test_golden_nvfp4 import test_square_blocks as test_nvfp4_square_blocks

__all__ = [
    "test_block_scaling",
    "test_cast_with_a_given_scale",
    "test_current_scaling",
    "test_four_over_six",
    "test_hadamard_transformed_columns",
    "test_mxfp4",
    "test_mxfp8",
    "test_mxfp8_square_blocks",
    "test_nvfp4",
    "test_nvfp4_square_blocks",
    "test_one_amax_per_row",
    "test_padded_and_swizzled",
]
