"""Inputs on which kernels differ first: ties, edges of powers of two, special values."""

import torch
from torch import Tensor

TIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 464.0, 61440.0, 2.0**-10, 3 * 2.0**-17)


def matrix(rows: int, cols: int, dtype: torch.dtype, seed: int = 0, special: bool = True) -> Tensor:
    """A matrix (rows, cols) of `dtype` over forty binades, with everything that is hard in it.

    Args:
        rows: Of the result.
        cols: Of the result.
        dtype: Of the result.
        seed: Of the random numbers.
        special: With infinities and NaN of either sign.
    """
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, size: int) -> Tensor:
        return torch.randint(low, high, (size,), generator=generator)

    count = rows * cols
    x = torch.randn(count, generator=generator) * 2.0 ** integers(-20, 20, count)
    # Whole rows near each other in size, whose blocks use every code of their range.
    x[: count // 2] = torch.randn(count // 2, generator=generator)
    powers = 2.0 ** integers(-149, 127, len(x[5::31]))
    x[5::31] = torch.where(integers(0, 2, len(powers)) == 1, powers, -powers)
    above = x[6::37].view(torch.int32)
    x[6::37] = ((above & -0x800000) + integers(-1, 2, len(above)).int()).view(torch.float32)
    ties = torch.tensor(TIES)
    x[4::19] = ties[integers(0, len(ties), len(x[4::19]))]
    x[::17], x[3::29], x[7::53] = 0.0, -0.0, -1e-42
    if special:
        for place, value in enumerate((torch.nan, torch.inf, -torch.inf, -torch.nan)):
            x[11 + place :: 191] = value
    return x.to(dtype).view(rows, cols)
