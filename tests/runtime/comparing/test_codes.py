"""What codes and scales say of zeros and saturation, against counting element by element."""

from __future__ import annotations

import pytest
import torch

from qrole.comparing.codes import nonzero_codes, saturated, scale_values
from qrole.dtypes import DType
from qrole.quantizers import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    MXFP4Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    Quantizer,
)
from qrole.roles import Usage

E4M3 = DType.kFloat8E4M3
QUANTIZERS: dict[str, Quantizer] = {
    "fp8 current": Float8CurrentScalingQuantizer(E4M3, "cpu"),
    "fp8 block 1d": Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True, block_scaling_dim=1),
    "fp8 block 2d": Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True),
    "mxfp8": MXFP8Quantizer(E4M3),
    "mxfp8 2d": MXFP8Quantizer(E4M3, with_2d_quantization=True),
    "nvfp4": NVFP4Quantizer(),
    "nvfp4 2d": NVFP4Quantizer(with_2d_quantization=True),
    "nvfp4 row-scaled": NVFP4Quantizer(row_scaled_nvfp4=True),
    "mxfp4 floor": MXFP4Quantizer(scale_rule="floor"),
}


def _x() -> torch.Tensor:
    x = torch.randn(70, 150, generator=torch.Generator().manual_seed(0))
    x[:, ::9] *= 1e-4
    x[3] = 0.0
    return x


@pytest.fixture(params=QUANTIZERS, ids=list(QUANTIZERS))
def quantizer(request: pytest.FixtureRequest) -> Quantizer:
    return QUANTIZERS[request.param].copy()


@pytest.mark.parametrize("usage", Usage)
def test_nonzero_codes_are_nonzero_values(quantizer: Quantizer, usage: Usage) -> None:
    made = quantizer(_x())
    form = made.format_of(usage)
    found = nonzero_codes(made.representation(usage).data, form.element)
    assert found == int(torch.count_nonzero(made.dequantize(direction=usage)))


@pytest.mark.parametrize("usage", Usage)
def test_saturated_elements_are_beyond_their_own_scale(quantizer: Quantizer, usage: Usage) -> None:
    x = _x()
    made = quantizer(x)
    form, data = made.format_of(usage), made.representation(usage)
    found = saturated(x, data, form, scale_values(data, form))
    if form.family not in ("nvfp4", "mxfp4"):
        assert found == 0
        return
    scales = scale_values(data, form)
    assert scales is not None
    flipped = usage is Usage.COLUMNWISE
    width = max(form.block or (1,))
    count = 0
    for i, row in enumerate((x.t() if flipped else x).tolist()):
        for j, value in enumerate(row):
            count += abs(value) > (6.0 * scales)[i, j // width].item()
    assert found == count > 0


def test_delayed_scaling_saturates() -> None:
    quantizer = Float8Quantizer(torch.tensor(448.0), torch.tensor(0.0), E4M3)
    x = torch.tensor([[0.5, -1.5, 2.0, 1.0]])
    made = quantizer(x)
    data, form = made.representation("rowwise"), made.format_of("rowwise")
    assert saturated(x, data, form, scale_values(data, form)) == 2


def test_transformed_data_has_no_places() -> None:
    quantizer = NVFP4Quantizer(with_rht=True, with_post_rht_amax=True)
    made = quantizer(_x())
    data, form = made.representation("columnwise"), made.format_of("columnwise")
    assert saturated(_x(), data, form, scale_values(data, form)) is None


def test_scales_are_multipliers_of_codes() -> None:
    x = torch.tensor([[448.0, 1.0] * 16])
    for name, expected in (("fp8 current", 1.0), ("mxfp8", 1.0), ("nvfp4", 448.0 / 6.0)):
        made = QUANTIZERS[name].copy()(x)
        found = scale_values(made.representation("rowwise"), made.format_of("rowwise"))
        assert found is not None
        torch.testing.assert_close(found.max().reshape(()), torch.tensor(expected))
