"""Matrices that look for trouble: ties, specials, wide ranges, every bit pattern, ragged shapes."""

from collections.abc import Iterator

import torch
from torch import Tensor

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_SPECIALS = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, -1e-40, 3e38, 448.0, 464.0, 6.0]
_SPECIALS += [57344.0, 61440.0, 0.25, -0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 2.0**-9, 2.0**-10]


def ties(generator: torch.Generator, shape: tuple[int, int]) -> Tensor:
    """Few significant bits: halfway cases of every format are common."""
    mantissa = torch.randint(-64, 65, shape, generator=generator).float()
    return mantissa * torch.exp2(torch.randint(-12, 3, shape, generator=generator).float())


def wide(generator: torch.Generator, shape: tuple[int, int]) -> Tensor:
    """A different power of two for every element."""
    exponents = torch.randint(-60, 60, shape, generator=generator).float()
    return torch.randn(shape, generator=generator) * torch.exp2(exponents)


def tall(generator: torch.Generator, shape: tuple[int, int]) -> Tensor:
    """A different power of two for every row, up to the ends of fp32."""
    exponents = torch.randint(-148, 127, (shape[0], 1), generator=generator)
    return torch.ldexp(torch.randn(shape, generator=generator), exponents)


def special(generator: torch.Generator, shape: tuple[int, int]) -> Tensor:
    """Zeros, infinities, NaN and range ends among normal numbers."""
    x = torch.randn(shape, generator=generator)
    choice = torch.randint(0, 8 * len(_SPECIALS), shape, generator=generator)
    return torch.where(choice < len(_SPECIALS), torch.tensor(_SPECIALS * 8)[choice], x)


def sparse(generator: torch.Generator, shape: tuple[int, int]) -> Tensor:
    """Mostly zero, so that whole blocks are."""
    return torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.03)


KINDS = (ties, wide, tall, special, sparse)
RAGGED = ((1, 1), (5, 33), (130, 300), (33, 545))


def ragged(dtype: str) -> Iterator[tuple[str, Tensor]]:
    """Matrices of every kind in shapes that divide by nothing, with and without row gaps."""
    for kind in KINDS:
        for m, k in RAGGED:
            x = kind(torch.Generator().manual_seed(m * k), (m, k + 3)).to(DTYPES[dtype])
            name = f"{kind.__name__} {m}x{k}"
            yield f"{name} with gaps", x[:, 2 : 2 + k]
            yield name, x[:, 2 : 2 + k].contiguous()


def all_bit_patterns(dtype: str) -> Iterator[tuple[str, Tensor]]:
    """Every 16-bit pattern, in and out of order; in fp32 as the high half of random numbers."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.arange(-(1 << 15), 1 << 15)
    for name, order in (("in order", patterns), ("shuffled", patterns[torch.randperm(1 << 16)])):
        if dtype == "f32":
            low = torch.randint(0, 1 << 16, order.shape, generator=generator)
            bits = ((order << 16) | low).to(torch.int32)
        else:
            bits = order.to(torch.int16)
        yield f"all patterns {name}", bits.view(DTYPES[dtype]).view(128, 512)
