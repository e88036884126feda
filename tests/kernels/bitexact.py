"""Bit-exact comparison of tensors that names the first bad coordinate."""

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def assert_bits_equal(given: Tensor, expected: Tensor, what: str = "tensor") -> None:
    """Assert equal shape, dtype and bytes; any NaN equals any other.

    Raises:
        AssertionError: Names the first differing coordinate, its bytes and values, and the count.
    """
    given, expected = given.detach().cpu(), expected.detach().cpu()
    assert given.shape == expected.shape, (
        f"{what}: given shape {tuple(given.shape)}, expected {tuple(expected.shape)}"
    )
    assert given.dtype == expected.dtype, f"{what}: given {given.dtype}, expected {expected.dtype}"
    bad = _bits(given) != _bits(expected)
    if given.dtype.is_floating_point:
        bad &= ~(given.isnan() & expected.isnan())
    if bad.any():
        raise AssertionError(f"{what}: {_first_difference(given, expected, bad)}")


def _bits(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.bool:
        return tensor
    return tensor.contiguous().view(_INTEGERS[tensor.element_size()])


def _first_difference(given: Tensor, expected: Tensor, bad: Tensor) -> str:
    where = tuple(bad.nonzero()[0].tolist())
    digits = 2 * given.element_size()
    mask = (1 << 4 * digits) - 1
    sides = [
        f"{name} 0x{int(_bits(t)[where]) & mask:0{digits}X} ({t[where].item()})"
        for name, t in (("given", given), ("expected", expected))
    ]
    return f"at {list(where)} {', '.join(sides)}; {int(bad.sum())} of {bad.numel()} differ"
