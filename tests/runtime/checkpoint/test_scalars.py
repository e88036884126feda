"""The per-tensor numbers, bit for bit those of the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qrole.checkpoint.scalars import (
    FLOAT32_MAX,
    f32,
    fp8_scale,
    global_divisor,
    global_multiplier,
    reciprocal,
)
from qrole_kernels import reference
from qrole_kernels.reference.nvfp4 import encode_scale

AMAX = st.floats(0, width=32, allow_nan=False, allow_infinity=False)


@given(AMAX, st.booleans(), st.sampled_from([0.0, 1e-3]))
def test_fp8_scales(amax: float, power_of_two: bool, epsilon: float) -> None:
    found = fp8_scale(amax, power_of_two=power_of_two, epsilon=epsilon)
    wanted = reference.fp8_scale(torch.tensor(amax), "e4m3", power_of_two, epsilon, FLOAT32_MAX)
    assert found == float(wanted)
    assert reciprocal(found) == float(1.0 / wanted)


@given(AMAX, st.sampled_from([448, 256]))
def test_nvfp4_divisors(amax: float, e4m3_max: int) -> None:
    assert global_divisor(amax, e4m3_max) == float(encode_scale(torch.tensor(amax), e4m3_max))


@pytest.mark.parametrize(("amax", "multiplier"), [(2688.0, 1.0), (0.0, 1.0), (1.0, f32(1 / 2688))])
def test_nvfp4_multipliers(amax: float, multiplier: float) -> None:
    assert global_multiplier(amax) == multiplier
