"""Attention of foreign modules by the plan's six quantizers, against what the slots say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from qrole.dtypes import DType
from qrole.quantizers import (
    MXFP8Quantizer,
)
from qrole.roles import QuantizerRole
from tests.runtime.execute.attention import (
    SCALE,
    B,
    D,
    H,
    Inputs,
    S,
    causal,
    current,
    eager,
    mxfp8,
    qkv,
    sdpa,
    step,
    written_in_place,
)
from tests.runtime.execute.conftest import randn


def _e4m3(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x * scale).to(torch.float8_e4m3fn).float() / scale


def _e5m2(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x * scale).to(torch.float8_e5m2).float() / scale


def _rounded(*tensors: torch.Tensor, gradient: bool = False) -> list[torch.Tensor]:
    """FP8 with one scale for all of them, in plain torch."""
    most, to = (57344.0, _e5m2) if gradient else (448.0, _e4m3)
    amax = max(x.abs().max() for x in tensors)
    return [to(x, most / amax) for x in tensors]


def _expected(
    inputs: Inputs, dy: torch.Tensor, *, bias: torch.Tensor | float = 0.0, scale: float = SCALE
) -> list[torch.Tensor]:
    """Current scaling in every slot; -inf in the bias masks."""
    q, k, v = _rounded(*(x.detach().float() for x in inputs))
    times = q.shape[1] // k.shape[1]
    heads = lambda x: x.repeat_interleave(times, dim=1)  # noqa: E731
    groups = lambda x: x.unflatten(1, (-1, times)).sum(2)  # noqa: E731
    weights = torch.softmax(q @ heads(k).mT * scale + bias, -1)
    (s,) = _rounded(weights)
    (out,) = _rounded(s @ heads(v))
    (do,) = _rounded(dy.float(), gradient=True)
    dv, dp = s.mT @ do, do @ heads(v).mT
    ds = weights * (dp - (dp * weights).sum(-1, keepdim=True))
    (ds,) = _rounded(ds, gradient=True)
    dq, dk = ds @ heads(k) * scale, ds.mT @ q * scale
    return [out, *_rounded(dq, groups(dk), groups(dv), gradient=True)]


def _assert_same(
    found: list[torch.Tensor], expected: list[torch.Tensor], most: float = 0.02
) -> None:
    """Equal but for the order of sums, which moves an element by one step of FP8 at most."""
    torch.testing.assert_close(found[0].float(), expected[0].float(), rtol=0.13, atol=1e-6)
    for given, wanted in zip(found, expected, strict=True):
        assert (given - wanted).norm() < most * wanted.norm()


ALIBI = -0.1 * (torch.arange(S).view(-1, 1) - torch.arange(S)).abs().float()
BOOLEAN = torch.rand(B, 1, S, S, generator=torch.Generator().manual_seed(3)) < 0.7


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"is_causal": True}, {"bias": causal()}),
        (
            {"attn_mask": BOOLEAN},
            {"bias": torch.zeros(B, 1, S, S).masked_fill(~BOOLEAN, -math.inf)},
        ),
        ({"attn_mask": ALIBI + causal()}, {"bias": ALIBI + causal()}),
        ({"scale": 0.3}, {"scale": 0.3}),
    ],
    ids=["plain", "causal", "boolean mask", "additive mask", "scale"],
)
def test_in_one_call(options: dict[str, Any], expected: dict[str, Any]) -> None:
    inputs = qkv()
    found = step(sdpa(**options), current, inputs)
    _assert_same(found, _expected(inputs, randn(B, H, S, D, seed=5), **expected))


def test_groups_in_one_call() -> None:
    inputs = qkv(groups=2, queries=16)
    found = step(sdpa(enable_gqa=True, is_causal=True), current, inputs)
    dy = randn(B, H, 16, D, seed=5)
    _assert_same(found, _expected(inputs, dy, bias=causal(16)))


def test_mxfp8_reads_the_blocks_that_each_product_sums_over() -> None:
    inputs = qkv()
    found = step(sdpa(), mxfp8, inputs)

    def hat(x: torch.Tensor, direction: str = "rowwise") -> torch.Tensor:
        made = MXFP8Quantizer(DType.kFloat8E4M3)(x.detach().reshape(-1, x.shape[-1]))
        return made.dequantize(torch.float32, direction).view(x.shape)

    q, k, v = inputs
    weights = torch.softmax(hat(q) @ hat(k).mT * SCALE, -1)
    torch.testing.assert_close(found[0], hat(weights @ hat(v, "columnwise")), rtol=0.07, atol=0)
    do = randn(B, H, S, D, seed=5)
    dv, dp = weights.mT @ hat(do, "columnwise"), hat(do) @ hat(v).mT
    ds = weights * (dp - (dp * weights).sum(-1, keepdim=True)) * SCALE
    expected = [hat(ds @ hat(k, "columnwise")), hat(ds.mT @ hat(q, "columnwise")), hat(dv)]
    for given, wanted in zip(found[1:], expected, strict=True):
        torch.testing.assert_close(given, wanted, rtol=0.13, atol=1e-4)


def _interleaved(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (torch.repeat_interleave(x, H // x.shape[1], dim=1) for x in (k, v))
    logits = q @ k.mT
    logits *= SCALE
    logits += causal(q.shape[2])
    return logits.softmax(-1) @ v


def _flat(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (x.repeat_interleave(H // x.shape[1], 1) for x in (k, v))
    mask = causal(q.shape[2]).expand(B * H, -1, -1)
    q3, k3, v3 = (x.flatten(0, 1) for x in (q, k, v))
    logits = mask.baddbmm(batch1=q3, batch2=k3.transpose(1, 2), alpha=SCALE)
    return torch.bmm(torch.softmax(logits, dim=-1), v3).view_as(q)


def _with_a_sink_of_nothing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (x.repeat_interleave(H // x.shape[1], dim=1) for x in (k, v))
    logits = torch.matmul(q, k.mT) * SCALE + causal(q.shape[2])
    logits = torch.cat([logits, torch.full_like(logits[..., :1], -1e30)], dim=-1)
    logits = logits - logits.detach().max(dim=-1, keepdim=True).values
    return logits.softmax(-1)[..., :-1] @ v


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("factory", [current, mxfp8])
@pytest.mark.parametrize(
    "written", [eager, _interleaved, written_in_place, _with_a_sink_of_nothing]
)
def test_written_out_is_as_in_one_call(
    written: Callable[..., torch.Tensor], factory: Callable[[QuantizerRole], Any], groups: int
) -> None:
    inputs = qkv(groups)
    once = step(sdpa(is_causal=True, enable_gqa=True), factory, inputs)
    _assert_same(step(written, factory, inputs), once)


def test_batches_and_heads_as_one_dimension() -> None:
    inputs = qkv()
    _assert_same(step(_flat, current, inputs), step(sdpa(is_causal=True), current, inputs))


def _dropped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.dropout(torch.softmax(q @ k.mT * SCALE, -1), 0.5) @ v


@pytest.mark.parametrize("compute", [sdpa(dropout_p=0.5), _dropped], ids=["one call", "written"])
def test_dropout(compute: Callable[..., torch.Tensor]) -> None:
    """The same elements are dropped as without the plan, and random numbers are drawn once."""
    inputs = qkv()
    torch.manual_seed(0)
    found = step(compute, current, inputs)
    after = torch.rand(1)
    torch.manual_seed(0)
    mask = F.dropout(torch.ones(B, H, S, S), 0.5)
    assert torch.equal(after, torch.rand(1))
    q, k, v = _rounded(*(x.detach() for x in inputs))
    (s,) = _rounded(torch.softmax(q @ k.mT * SCALE, -1) * mask)
    torch.testing.assert_close(found[0], _rounded(s @ v)[0], rtol=0.13, atol=1e-5)
    (do,) = _rounded(randn(B, H, S, D, seed=5), gradient=True)
    assert (found[3] - s.mT @ do).norm() < 0.08 * found[3].norm()


def test_bf16_is_fp32_between_the_quantizations() -> None:
    inputs = qkv(dtype=torch.bfloat16)
    dy = randn(B, H, S, D, seed=5).bfloat16()
    for compute in (sdpa(is_causal=True), eager):
        found = step(compute, current, inputs)
        assert {x.dtype for x in found} == {torch.bfloat16}
        for given, wanted in zip(found, _expected(inputs, dy, bias=causal()), strict=True):
            assert (given.float() - wanted).norm() < 0.05 * wanted.norm()


def test_autocast_casts_as_products_do() -> None:
    inputs = qkv()

    def under(compute: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def computed(*given: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return compute(*given)

        return computed

    found = [step(under(compute), current, inputs) for compute in (sdpa(is_causal=True), eager)]
    assert found[0][0].dtype == found[1][0].dtype == torch.bfloat16
    _assert_same(found[0], found[1])
