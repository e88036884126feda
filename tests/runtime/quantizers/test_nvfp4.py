"""Stochastic rounding, the Hadamard transform and 2D blocks as quantizer options."""

import pytest
import torch

from qrole.quantizers import NVFP4Quantizer

GRID = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def _generator(seed=0):
    return torch.Generator().manual_seed(seed)


def _rht(**options):
    return NVFP4Quantizer(with_rht=True, with_post_rht_amax=True, **options)


def _non_constant(rows=64, columns=128):
    return torch.randn(rows, columns, generator=_generator(7), dtype=torch.bfloat16)


def test_equal_seeds_round_equally():
    quantizer, x = NVFP4Quantizer(stochastic_rounding=True), _non_constant()
    first = quantizer.quantize(x, generator=_generator(1))
    again = quantizer.quantize(x, generator=_generator(1))
    other = quantizer.quantize(x, generator=_generator(2))
    assert torch.equal(first.rowwise_data, again.rowwise_data)
    assert torch.equal(first.columnwise_data, again.columnwise_data)
    assert not torch.equal(first.rowwise_data, other.rowwise_data)


def test_torchs_default_generator_seeds_too():
    quantizer, x = _rht(stochastic_rounding=True), _non_constant()
    made = []
    for _ in range(2):
        torch.manual_seed(3)
        made.append(quantizer(x).columnwise_data)
    assert torch.equal(*made)


@pytest.mark.parametrize("direction", ["rowwise", "columnwise"])
@pytest.mark.parametrize("rht", [False, True], ids=["plain", "rht"])
def test_stochastic_rounding_is_unbiased_and_nearest_is_not(rht, direction):
    x = torch.linspace(-1, 1, 32 * 32).reshape(32, 32).bfloat16()
    options = {"with_rht": rht, "with_post_rht_amax": rht}
    stochastic = NVFP4Quantizer(stochastic_rounding=True, **options)
    generator, total = _generator(), torch.zeros(32, 32)
    draws = 400
    for _ in range(draws):
        made = stochastic.quantize(x, generator=generator)
        total += made.dequantize(torch.float32, direction)
    # The median leaves out what saturates where a block's scale was rounded down.
    bias = (total / draws - x.float()).abs().median()
    nearest = NVFP4Quantizer(**options)(x).dequantize(torch.float32, direction)
    assert bias < 0.25 * (nearest - x.float()).abs().median()


def test_stochastic_rounding_takes_one_of_the_two_neighbours():
    x = _non_constant(16, 64)
    scale_six = torch.zeros(16, 64)
    scale_six[:, ::16] = 6.0
    x = torch.where(scale_six > 0, scale_six, x.clamp(-5.9, 5.9).float())
    made = NVFP4Quantizer(stochastic_rounding=True).quantize(x, generator=_generator())
    values = made.dequantize()
    below = GRID[(torch.searchsorted(GRID, x.abs().contiguous(), right=True) - 1)]
    above = GRID[torch.searchsorted(GRID, x.abs().contiguous()).clamp(max=7)]
    assert ((values.abs() == below) | (values.abs() == above)).all()
    assert (values != NVFP4Quantizer()(x).dequantize()).any()


def test_rowwise_data_never_sees_the_transform():
    x = _non_constant()
    plain, transformed = NVFP4Quantizer()(x), _rht()(x)
    assert torch.equal(plain.rowwise_data, transformed.rowwise_data)
    assert not torch.equal(plain.columnwise_data, transformed.columnwise_data)
    assert transformed.amax_columnwise != plain.amax_columnwise


def test_random_signs_can_be_switched_off():
    x = _non_constant()
    assert _rht(with_random_sign_mask=False).label == "NVFP4 RHT unsigned"
    unsigned = _rht(with_random_sign_mask=False)(x)
    assert not torch.equal(unsigned.columnwise_data, _rht()(x).columnwise_data)
    error = (unsigned.dequantize(torch.float32, "columnwise") - x.float()).norm()
    assert error < 0.12 * x.float().norm()


def test_the_transform_is_taken_in_bf16():
    x = _non_constant().float() * 1.001
    in_bf16 = _rht()(x.bfloat16())
    assert torch.equal(_rht()(x).columnwise_data, in_bf16.columnwise_data)


def test_tokens_are_padded_for_the_transform():
    x = _non_constant(21, 32)
    quantized = _rht()(x)
    assert quantized.columnwise_data.shape == (32, 16)
    padded = torch.nn.functional.pad(x, (0, 0, 0, 11))
    assert torch.equal(quantized.columnwise_data, _rht()(padded).columnwise_data)
    assert quantized.dequantize(direction="columnwise").shape == (21, 32)


@pytest.mark.parametrize("shape", [(32, 48), (20, 37), (5, 16)], ids=str)
@pytest.mark.parametrize("four_over_six", [False, True])
def test_square_blocks_are_transposed_not_quantized_again(shape, four_over_six):
    x = torch.randn(*shape, generator=_generator(4))
    options = {"with_2d_quantization": True, "nvfp4_use_4over6": four_over_six}
    quantized = NVFP4Quantizer(**options)(x)
    assert torch.equal(quantized.dequantize(), quantized.dequantize(direction="columnwise"))
    assert quantized.columnwise_scale_inv.shape == (shape[1], -(-shape[0] // 16))


def test_row_scaled_amax():
    x = _non_constant(16, 32)
    quantized = NVFP4Quantizer(row_scaled_nvfp4=True)(x)
    assert torch.equal(quantized.amax_rowwise, x.float().abs().amax(1))
    assert torch.equal(quantized.amax_columnwise, x.float().abs().amax(0))
