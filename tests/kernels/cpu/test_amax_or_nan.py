"""The amax that keeps NaN: NaN where there is one, else what the plain amax gives."""

import math

import pytest
import torch

from qrole_kernels.cpu import fallback, host
from tests.kernels.cpu.matrices import DTYPES, all_bit_patterns, ragged


@pytest.mark.parametrize("entry", [host, fallback], ids=["compiled", "fallback"])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_nan_is_kept(dtype, entry):
    for what, x in [*ragged(dtype), *all_bit_patterns(dtype)]:
        arguments = (x.data_ptr(), dtype, *x.shape, x.stride(0))
        strides = {"col_stride": x.stride(1)}
        found = entry.host_amax(*arguments, **strides, keep_nan=True)
        plain = entry.host_amax(*arguments, **strides)
        assert math.isnan(found) if bool(x.isnan().any()) else found == plain, what


@pytest.mark.parametrize("place", [(0, 0), (3, 1), (7, 70)])
def test_one_nan_anywhere(place):
    x = torch.randn(8, 71)
    x[place] = torch.nan
    assert math.isnan(host.host_amax(x.data_ptr(), "f32", 8, 71, 71, keep_nan=True))
