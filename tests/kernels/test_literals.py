"""Literal in, literal out: small answers that can be checked by hand, and one pinned error each."""

import pytest
import torch

from qrole_kernels import layout, reference
from qrole_kernels.philox import random_bytes
from qrole_kernels.reference.elements import (
    decode_e2m1,
    encode_e2m1,
    encode_e2m1_stochastic,
    encode_e8m0_up,
    encode_fp8,
    pack_nibbles,
    unpack_nibbles,
)
from tests.kernels.bitexact import assert_bits_equal
from tests.kernels.codecs import CODECS

INF, NAN = torch.inf, torch.nan


def hexes(data: torch.Tensor) -> str:
    return bytes(data.flatten().tolist()).hex(" ")


@pytest.fixture
def x():
    return torch.tensor([[1.0, -2.0, 0.3, 100.0]])


def test_fp8_casts_saturate_and_drop_the_sign_of_nan():
    x = torch.tensor([0.0, -0.0, 448.0, 464.0, 1e9, INF, -INF, NAN, -NAN, 2.0**-10, 1.5 * 2**-9])
    assert hexes(encode_fp8(x, "e4m3")) == "00 80 7e 7e 7e 7e fe 7f 7f 00 02"
    assert hexes(encode_fp8(x, "e5m2")) == "00 80 5f 5f 7b 7b fb 7f 7f 14 1a"


def test_e2m1_ties_go_to_even_and_nan_to_six():
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert decode_e2m1(encode_e2m1(ties)).tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert encode_e2m1(torch.tensor([-0.0, -0.1, -INF, INF, NAN, -NAN])).tolist() == [
        *(8, 8, 15),
        *(7, 7, 7),
    ]


def test_e8m0_rounds_up():
    x = torch.tensor([0.0, 2.0**-127, 2.0**-126, 1.0, 1.0000001, 2.0**127, 3e38, INF, NAN])
    assert hexes(encode_e8m0_up(x)) == "00 00 01 7f 80 fe fe fe ff"


def test_stochastic_rounding_moves_between_neighbours():
    """1.25 lies half-way between 1 and 1.5: it rounds up for the upper half of the bytes."""
    x = torch.tensor([1.25, 1.25, -1.25, 5.0, 5.0, 6.0])
    bits = torch.tensor([127, 128, 128, 127, 128, 255], dtype=torch.uint8)
    assert decode_e2m1(encode_e2m1_stochastic(x, bits)).tolist() == [1, 1.5, -1.5, 4, 6, 6]


def test_nibbles():
    codes = torch.tensor([[1, 2, 3]], dtype=torch.uint8)
    assert hexes(pack_nibbles(codes)) == "21 03"
    assert unpack_nibbles(pack_nibbles(codes)).tolist() == [[1, 2, 3, 0]]


def test_amax_ignores_nan():
    x = torch.tensor([[NAN, -3.0], [NAN, NAN]])
    assert reference.amax(x).item() == 3.0
    assert reference.amax_rows(x).tolist() == [3.0, 0.0]
    assert reference.amax(torch.tensor([[NAN, -INF]])).item() == INF


def test_fp8_scale_of_special_amax():
    amax = torch.tensor([0.0, INF, NAN, 448.0, 100.0, 1e-38])
    scale = reference.fp8_scale(amax, "e4m3", False, 0.0, 65504.0)
    assert scale.tolist() == [1.0, 1.0, 1.0, 1.0, torch.tensor(4.48).item(), 65504.0]
    floored = reference.fp8_scale(amax, "e4m3", True, 448.0, 65504.0)
    assert floored.tolist() == [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_fp8_current(x):
    data, scale, scale_inv, amax = reference.quantize_fp8_current(x, "e4m3")
    # 448/100 = 4.48; times x: 4.48 -> 4.5, -8.96 -> -9, 1.344 -> 1.375, 448.
    assert hexes(data) == "49 d1 3b 7e"
    assert (scale.item(), amax.item()) == (torch.tensor(4.48).item(), 100.0)
    assert scale_inv.item() == (1 / torch.tensor(4.48)).item()


def test_fp8_current_with_a_power_of_two(x):
    data, scale, scale_inv, _ = reference.quantize_fp8_current(x, "e4m3", power_of_two=True)
    # The scale is 4: 4, -8, 1.2 -> 1.25, 400 -> 384.
    assert hexes(data) == "48 d0 3a 7c"
    assert (scale.item(), scale_inv.item()) == (4.0, 0.25)


def test_fp8_given_scale_saturates(x):
    assert hexes(reference.quantize_fp8(x, torch.tensor(8.0), "e4m3")) == "50 d8 42 7e"


def test_fp8_rows(x):
    data, scale_inv = reference.quantize_fp8_rows(torch.cat((x, x * 0)), "e4m3")
    assert hexes(data) == "49 d1 3b 7e 00 80 00 00"
    assert scale_inv.tolist() == [[(1 / torch.tensor(4.48)).item()], [1.0]]


@pytest.mark.parametrize("block_rows", [1, 128])
def test_fp8_block(x, block_rows):
    data, scale_inv = reference.quantize_fp8_block(x, "e4m3", block_rows)
    assert (hexes(data), scale_inv.tolist()) == ("48 d0 3a 7c", [[0.25]])


def test_mxfp8(x):
    # 100/448 = 0.223 -> 2^-2, byte 125.
    data, scale = reference.quantize_mxfp8(x, "e4m3", 1, 32)
    assert (hexes(data), hexes(scale)) == ("48 d0 3a 7c", "7d")
    # 57344 = 1.75 * 2^15: 1 -> 2^-15 (byte 112) scales to 2^15; 100 = 1.5625 * 2^6.
    data, scale = reference.quantize_mxfp8(x, "e5m2", 32, 1)
    assert (hexes(data), hexes(scale)) == ("78 f8 79 7a", "70 71 6e 76")


def test_mxfp8_of_infinity_and_zero():
    data, scale = reference.quantize_mxfp8(torch.tensor([[INF, 1.0], [0.0, -0.0]]), "e4m3", 1, 32)
    assert (hexes(data), hexes(scale)) == ("7e 00 00 80", "fe 00")


def test_nvfp4(x):
    # S = 26.88, s = 100 * S/6 = 448 (0x7e); 6/100 * x: .06 -> 0, -.12 -> -0, .018 -> 0, 6.
    packed, scale = reference.quantize_nvfp4(x, torch.tensor(100.0), 1)
    assert (hexes(packed), hexes(scale)) == ("80 70", "7e")
    decoded = reference.dequantize_nvfp4(packed, scale, torch.tensor(100.0), 448, torch.float32)
    assert decoded.tolist() == [[0.0, -0.0, 0.0, 100.0]]


def test_nvfp4_square_blocks_repeat_their_scale():
    x = torch.zeros(18, 17)
    x[17, 16] = 6.0
    _, scale = reference.quantize_nvfp4(x, torch.tensor(6.0), 16)
    assert scale.tolist() == [[0, 0]] * 16 + [[0, 0x7E]] * 2


def test_nvfp4_with_one_amax_per_row():
    x = torch.tensor([[6.0, 3.0], [12.0, 1.0]])
    packed, scale = reference.quantize_nvfp4(x, torch.tensor([6.0, 12.0]), 1)
    assert (hexes(packed), hexes(scale)) == ("57 17", "7e 7e")


def test_nvfp4_four_over_six_picks_four_where_it_is_exact():
    """4, 3, 2 under a maximum of 4 need no rounding; under 6, three becomes 4.5 and rounds."""
    x = torch.tensor([[4.0, 3.0, 2.0, 0.0]])
    plain, _ = reference.quantize_nvfp4(x, torch.tensor(4.0), 1, 256)
    picked, scale = reference.quantize_nvfp4(x, torch.tensor(4.0), 1, 256, "mae")
    assert (hexes(plain), hexes(picked)) == ("67 05", "56 04")
    assert hexes(scale) == "7c"


def test_mxfp4_rules(x):
    # amax 100: 100/6 = 16.7 -> 32; floor: 64/4 = 16; 1.75: floor 0.25, even 0.5.
    assert [hexes(t) for t in reference.quantize_mxfp4(x, "rceil")] == ["80 50", "84"]
    assert [hexes(t) for t in reference.quantize_mxfp4(x, "floor")] == ["80 70", "83"]
    y = torch.tensor([[1.75, 1.0]])
    assert [hexes(t) for t in reference.quantize_mxfp4(y, "floor")] == ["67", "7d"]
    assert [hexes(t) for t in reference.quantize_mxfp4(y, "even")] == ["46", "7e"]


def test_hadamard_of_a_unit_vector_is_a_row_of_signs():
    x = torch.eye(16)[3:4].to(torch.bfloat16)
    # Element 3 changes sign (bit 3 of 0xD7E8); row 3 of H16 is + - - + repeated.
    assert reference.hadamard16(x).tolist() == [[-0.25, 0.25, 0.25, -0.25] * 4]
    assert reference.hadamard16(x, 0).tolist() == [[0.25, -0.25, -0.25, 0.25] * 4]


def test_hadamard_keeps_the_products_of_a_gemm():
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randint(-8, 9, (4, 32), generator=generator).to(torch.bfloat16) for _ in "ab")
    given = reference.hadamard16(a).float() @ reference.hadamard16(b).float().t()
    assert_bits_equal(given, a.float() @ b.float().t())


def test_swizzle_puts_rows_32_apart_side_by_side():
    scale = torch.arange(128).repeat_interleave(4).view(128, 4).to(torch.uint8)
    swizzled = layout.swizzle_scales(scale)
    assert swizzled[:20].tolist() == [0] * 4 + [32] * 4 + [64] * 4 + [96] * 4 + [1] * 4


def test_random_bytes_do_not_depend_on_the_shape():
    large = random_bytes(1234, 5, 50)
    assert_bits_equal(random_bytes(1234, 3, 17), large[:3, :17].contiguous())
    assert not torch.equal(random_bytes(1234, 5, 50, offset=1), large)
    assert not torch.equal(random_bytes(1235, 5, 50), large)


def test_stochastic_rounding_is_unbiased():
    x = torch.full((256, 256), 1.3)
    codes = encode_e2m1_stochastic(x, random_bytes(7, 256, 256))
    values = decode_e2m1(codes)
    assert set(values.unique().tolist()) == {1.0, 1.5}
    # A byte resolves 1/256 of a step; the mean of 65536 draws has a deviation of 0.001.
    assert abs(values.mean().item() - 1.3) < 0.5 / 256 + 0.003


SQNR_DB = {
    "fp8_e4m3": 31.535,
    "fp8_e4m3_pow2": 31.491,
    "fp8_e5m2": 25.626,
    "fp8_e5m2_pow2": 25.500,
    "fp8_rows_e4m3": 31.587,
    "fp8_rows_e5m2": 25.619,
    "fp8_1x128_e4m3_fp32": 31.815,
    "fp8_1x128_e4m3_pow2": 31.491,
    "fp8_128x128_e4m3_fp32": 31.541,
    "fp8_128x128_e4m3_pow2": 31.491,
    "fp8_1x128_e5m2_pow2": 25.500,
    "mxfp8_e4m3_1x32": 31.491,
    "mxfp8_e4m3_32x1": 31.491,
    "mxfp8_e4m3_32x32": 31.491,
    "mxfp8_e5m2_1x32": 25.500,
    "nvfp4_1x16": 20.372,
    "nvfp4_16x16": 19.063,
    "nvfp4_1x16_4over6_mae256": 21.054,
    "nvfp4_16x16_4over6_mse448": 19.082,
    "mxfp4_rceil": 18.757,
    "mxfp4_floor": 18.828,
    "mxfp4_even": 19.035,
}
"""Of a 256x512 Gaussian in bf16, seed 0."""


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
def test_pinned_error(codec):
    x = torch.randn(256, 512, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    error = codec.decode(codec.quantize(x), x.shape).double() - x.double()
    sqnr_db = 10 * torch.log10(x.double().square().sum() / error.square().sum()).item()
    assert sqnr_db == pytest.approx(SQNR_DB[codec.name], abs=5e-4)
