"""Statistics of pairs of arrays, and elements beyond their block's limit, against torch."""

from __future__ import annotations

import pytest
import torch

from qrole_kernels.cpu.counts import STEP, host_beyond, host_masked
from qrole_kernels.cpu.difference import CHUNK, LANES, STATISTICS, host_difference


def _randn(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", [64, CHUNK, CHUNK + 64, 40 * CHUNK + 128])
@pytest.mark.parametrize("threads", [1, 2])
def test_difference(count: int, threads: int) -> None:
    a, b = _randn(count, 0), _randn(count, 1)
    a[::3] = 0.0
    out = torch.empty(-(-count // CHUNK), len(STATISTICS), LANES)
    host_difference(a.data_ptr(), b.data_ptr(), count, out.data_ptr(), threads=threads)
    sums = out[:, :3].sum((0, 2), dtype=torch.float64)
    x, y = a.double(), b.double()
    expected = torch.stack([x.square().sum(), y.square().sum(), (y - x).square().sum()])
    torch.testing.assert_close(sums, expected, rtol=1e-5, atol=0)
    bits = out[:, 3:].view(torch.int32)
    largest = bits[:, :2].amax((0, 2)).view(torch.float32)
    assert largest.tolist() == [(b - a).abs().max().item(), a.abs().max().item()]
    smallest = bits[:, 2].amin().view(torch.float32)
    assert smallest.item() == a[a != 0].abs().min().item()
    assert int(bits[:, 3].sum()) == int(torch.count_nonzero(a))


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("blocks", [1, 1000, 70_000])
def test_beyond(blocks: int, block: int) -> None:
    x, limits = _randn(blocks * block, 0), _randn(blocks, 1).abs()
    x[0] = float("nan")
    found = host_beyond(x.data_ptr(), limits.data_ptr(), blocks, block)
    assert found == int((x.view(blocks, block).abs() > limits[:, None]).sum())


@pytest.mark.parametrize("count", [0, STEP, 1000 * STEP, (1 << 22) + STEP])
@pytest.mark.parametrize("mask", [0x07, 0x70, 0x7F, 0xFF])
@pytest.mark.parametrize("threads", [1, 2])
def test_masked(count: int, mask: int, threads: int) -> None:
    codes = torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(0))
    codes = codes.to(torch.uint8)
    codes[::5] = 0x80
    found = host_masked(codes.data_ptr(), count, mask, threads=threads)
    assert found == int(torch.count_nonzero(codes & mask))
