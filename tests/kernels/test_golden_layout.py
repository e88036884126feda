"""Known answers of the scale layouts, and the completeness of the known-answer tests."""

from tests.kernels import golden
from tests.kernels.bitexact import assert_bits_equal


@golden.cases("layout_scales")
def test_padded_and_swizzled(case, kernels):
    for name in ("mxfp8_rowwise", "mxfp8_columnwise", "nvfp4_rowwise", "nvfp4_columnwise"):
        compact = case[f"{name}_compact"]
        transposed = name == "mxfp8_columnwise"
        padded = kernels.pad_scales(compact, *((4, 128) if transposed else ()))
        assert_bits_equal(padded, case[f"{name}_padded"], f"{name} padded")
        source = compact.t() if transposed else compact
        swizzled = kernels.swizzle_scales(source)
        assert_bits_equal(swizzled, case[f"{name}_swizzled"], f"{name} swizzled")
        assert_bits_equal(kernels.unswizzle_scales(swizzled, *source.shape), source, name)
