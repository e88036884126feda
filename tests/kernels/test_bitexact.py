"""The comparer itself must be able to fail."""

import pytest
import torch

from tests.kernels.bitexact import assert_bits_equal


def test_equal_tensors_pass():
    assert_bits_equal(torch.tensor([1.0, -0.0]), torch.tensor([1.0, -0.0]))


def test_any_nan_equals_any_nan():
    negative_nan = torch.tensor([-1 << 22], dtype=torch.int32).view(torch.float32)
    assert_bits_equal(negative_nan, torch.tensor([torch.nan]))


def test_first_bad_coordinate_and_bytes_are_named():
    with pytest.raises(
        AssertionError,
        match=r"q: at \[1, 0\] given 0x7E \(126\), expected 0x7F \(127\); 1 of 4 differ",
    ):
        assert_bits_equal(
            torch.tensor([[1, 2], [126, 4]], dtype=torch.uint8),
            torch.tensor([[1, 2], [127, 4]], dtype=torch.uint8),
            "q",
        )


def test_sign_of_zero_counts():
    with pytest.raises(AssertionError, match=r"given 0x80000000 \(-0.0\)"):
        assert_bits_equal(torch.tensor(-0.0), torch.tensor(0.0))


def test_nan_against_number_counts():
    with pytest.raises(AssertionError, match="1 of 2 differ"):
        assert_bits_equal(torch.tensor([torch.nan, 1.0]), torch.tensor([1.0, 1.0]))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (torch.zeros(3), r"given shape \(2,\), expected \(3,\)"),
        (torch.zeros(2, dtype=torch.float64), "given torch.float32, expected torch.float64"),
    ],
)
def test_shape_and_dtype_count(other, message):
    with pytest.raises(AssertionError, match=message):
        assert_bits_equal(torch.zeros(2), other)
