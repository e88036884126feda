"""What chance explains: quantiles, and how often runs of equal quality fail."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
import torch

from qrole.comparing import compare, judge, noise_floor
from qrole.comparing.noise import Noise, t_quantile


@pytest.mark.parametrize(
    ("tail", "df", "expected"),
    [
        (0.025, 1, 12.7062),
        (0.025, 2, 4.30265),
        (1e-4, 4, 13.0337),
        (1e-5, 10, 7.52700),
        (0.01, 1e9, 2.32635),
    ],
)
def test_quantiles_of_students_t(tail: float, df: float, expected: float) -> None:
    assert t_quantile(tail, df) == pytest.approx(expected, rel=1e-3)


def test_equal_spreads_are_pooled_and_unequal_ones_are_not() -> None:
    generator = torch.Generator().manual_seed(0)
    chi = torch.randn(200, 2, generator=generator).square().mean(1).sqrt().double()
    alike = Noise.of((0.03 * chi).tolist(), 2)
    assert alike.weight > 5
    assert math.sqrt(alike.usual) == pytest.approx(0.03, rel=0.1)
    assert alike.allowed(0.06) < 1.3 * alike.allowed(0.03)
    scales = torch.logspace(-4, 0, 200, dtype=torch.float64)
    apart = Noise.of((scales * chi).tolist(), 2)
    assert apart.weight < 1
    assert apart.allowed(0.5) > 5 * apart.allowed(0.05)


def test_a_single_error_is_judged_by_its_own_spread() -> None:
    noise = Noise.of([0.02], 1)
    assert noise.weight == 0.0
    assert noise.allowed(0.02) == pytest.approx(t_quantile(0.01, 1) * math.sqrt(2) * 0.02)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_quality_fails_once_in_a_hundred(seeds: int) -> None:
    """Two hundred errors with spreads of their own: a range of two seeds fails most of the time."""
    generator = torch.Generator().manual_seed(seeds)
    failed = failed_by_range = 0
    trials = 60
    for _ in range(trials):
        spread = 0.03 * torch.exp(0.5 * torch.randn(200, generator=generator, dtype=torch.float64))
        runs = torch.randn(seeds + 1, 200, generator=generator, dtype=torch.float64)
        values = 1.0 + spread * runs
        seen = values[:seeds].std(0) / values[0]
        noise = Noise.of(seen.tolist(), seeds - 1)
        allowed = torch.tensor([noise.allowed(s) for s in seen.tolist()], dtype=torch.float64)
        growth = values[-1] / values[0] - 1
        failed += bool((growth > allowed).any())
        extent = values[:seeds].amax(0) - values[:seeds].amin(0)
        failed_by_range += bool((growth > 3 * extent).any())
    assert failed <= 2
    assert failed_by_range > 10 * failed


def test_two_seeds_let_other_seeds_pass_and_a_doubled_error_fail(samples: Path) -> None:
    model = str(samples / "mlp.py")
    report = compare(model, "nvfp4", repeats=2)
    baseline = report.to_json()
    assert baseline["repeats"] == 2
    for seed in (10, 20, 30):
        assert judge(compare(model, "nvfp4", seed=seed), baseline=baseline).violations == ()
    floor = noise_floor(report, baseline)
    assert floor is not None
    assert 0.05 < floor < 1.0
    for parameter in baseline["candidates"][0]["parameters"]:
        parameter["grad_rel_err"] /= 3
    assert judge(report, baseline=baseline).violations


def test_what_does_not_vary_has_no_noise(samples: Path) -> None:
    report = compare(str(samples / "mlp.py"), "mxfp8", repeats=2)
    assert noise_floor(report, report.to_json()) is None


def test_standard_deviations_are_kept(samples: Path) -> None:
    model = str(samples / "mlp.py")
    runs = [compare(model, "nvfp4", seed=seed).candidates[0] for seed in range(3)]
    noise = compare(model, "nvfp4", repeats=3).noise
    errors = [run.model.grad_rel_err for run in runs]
    assert None not in errors
    found = statistics.stdev(error for error in errors if error is not None)
    assert noise["nvfp4: logits grad_rel_err"] == pytest.approx(found, rel=1e-3)
