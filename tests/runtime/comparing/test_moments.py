"""Streaming statistics equal those of all elements at once, for every layout."""

from __future__ import annotations

import math

import pytest
import torch

from qrole.comparing import difference
from qrole.comparing.difference import difference_of
from qrole.comparing.moments import ErrorMoments, Spread


def _randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "every other column": lambda x: torch.stack((x, x), -1)[..., 0],
}


def test_literals() -> None:
    moments = ErrorMoments()
    moments.add(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 3.5]))
    assert moments.mse == 0.125
    assert moments.max_abs_err == 0.5
    assert moments.rel_err == 0.1
    assert moments.sqnr_db == pytest.approx(20.0)
    assert moments.cosine == pytest.approx(23.0 / (5.0 * math.sqrt(21.25)))


@pytest.mark.parametrize("left", LAYOUTS, ids=list(LAYOUTS))
@pytest.mark.parametrize("right", LAYOUTS, ids=list(LAYOUTS))
def test_pieces_add_up(left: str, right: str) -> None:
    x, y = _randn(300, 257, seed=0), _randn(300, 257, seed=1)
    moments = ErrorMoments()
    moments.add(LAYOUTS[left](x), LAYOUTS[right](y))
    moments.add(LAYOUTS[left](2 * x), LAYOUTS[right](y))
    a, b = torch.cat((x, 2 * x)).double(), torch.cat((y, y)).double()
    assert moments.numel == a.numel()
    assert moments.error_sq == pytest.approx((a - b).square().sum().item(), rel=1e-5)
    assert moments.cosine == pytest.approx(torch.cosine_similarity(a, b, 0).mean().item(), abs=1)
    expected = (a * b).sum() / (a.norm() * b.norm())
    assert moments.cosine == pytest.approx(expected.item(), abs=1e-5)
    assert moments.max_abs_err == pytest.approx((a - b).abs().max().item(), rel=1e-6)


def test_equal_tensors_have_infinite_sqnr_and_zeros_none() -> None:
    equal, empty = ErrorMoments(), ErrorMoments()
    equal.add(torch.ones(4), torch.ones(4))
    empty.add(torch.zeros(4), torch.ones(4))
    assert (equal.sqnr_db, equal.rel_err, equal.cosine) == (math.inf, 0.0, 1.0)
    assert (empty.sqnr_db, empty.rel_err, empty.cosine) == (None, None, None)


def test_nan_and_infinity_are_counted() -> None:
    moments = ErrorMoments()
    moments.add(torch.ones(3), torch.tensor([1.0, math.nan, math.inf]))
    assert moments.nonfinite == 2
    assert moments.max_abs_err == math.inf
    assert moments.sqnr_db == -math.inf


def test_merging_equals_adding() -> None:
    parts, whole = [ErrorMoments(), ErrorMoments()], ErrorMoments()
    for i, part in enumerate(parts):
        x, y = _randn(10, 10, seed=i), _randn(10, 10, seed=i + 2)
        part.add(x, y)
        whole.add(x, y)
    parts[0].merge(parts[1])
    assert parts[0] == whole


@pytest.mark.parametrize("layout", LAYOUTS, ids=list(LAYOUTS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "torch"])
def test_facts_of_the_reference(
    layout: str, dtype: torch.dtype, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(difference, "_compiled", difference._in_torch)
    x = _randn(300, 257, seed=0).to(dtype)
    x[::7] = 0.0
    x[1, 1] = -9.5
    facts = difference_of(LAYOUTS[layout](x), torch.zeros(300, 257))
    nonzero = x[x != 0].abs()
    assert (facts.numel, facts.nonzero) == (x.numel(), nonzero.numel())
    assert (facts.amax, facts.smallest) == (9.5, nonzero.min().item())
    expected = x.double().square().sum().item()
    assert facts.reference_sq == pytest.approx(expected, rel=1e-5)
    assert facts.error_sq == pytest.approx(expected, rel=1e-5)
    assert (facts.test_sq, facts.max_abs_err) == (0.0, 9.5)


@pytest.mark.parametrize("numel", [1, 63, 64, 65, 32768, 100_000])
def test_zeros_and_nan(numel: int) -> None:
    zeros = difference_of(torch.zeros(numel), torch.zeros(numel))
    assert (zeros.nonzero, zeros.amax, zeros.smallest) == (0, 0.0, math.inf)
    x = torch.ones(numel)
    x[-1] = math.nan
    assert math.isnan(difference_of(x, torch.ones(numel)).amax)
    assert math.isnan(difference_of(torch.ones(numel), x).error_sq)


def test_spread_ignores_padding() -> None:
    spread = Spread()
    spread.add(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    spread.add(torch.tensor(2.0))
    assert (spread.count, spread.low, spread.high) == (3, 1.0, 3.0)
    assert spread.std == pytest.approx(math.sqrt(2 / 3))
    assert Spread().std is None
