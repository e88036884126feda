"""The audit refuses the pairs that the GEMM refuses, and no others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from qrole.auditing import audit_model
from qrole.dtypes import DType
from qrole.gemm import incompatibility
from qrole.quantizers import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    HybridQuantizer,
    IdentityQuantizer,
    MXFP4Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    Quantizer,
)
from tests.audit.building import one_layer

E4M3, E5M2 = DType.kFloat8E4M3, DType.kFloat8E5M2

MAKERS: dict[str, Callable[[], Quantizer]] = {
    "identity": IdentityQuantizer,
    "fp8": lambda: Float8CurrentScalingQuantizer(E4M3, device="cpu"),
    "fp8 e5m2": lambda: Float8CurrentScalingQuantizer(E5M2, device="cpu"),
    "block 1x128": lambda: block(1),
    "block 128x128": lambda: block(2),
    "mxfp8": lambda: MXFP8Quantizer(E4M3),
    "mxfp8 e5m2": lambda: MXFP8Quantizer(E5M2),
    "mxfp4": MXFP4Quantizer,
    "nvfp4": NVFP4Quantizer,
    "nvfp4 2d": lambda: NVFP4Quantizer(with_2d_quantization=True),
}
CODES = {"QR301", "QR302", "QR303", "QR305", "QR306", "QR309"}


def block(dim: int) -> Quantizer:
    return Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True, block_scaling_dim=dim)


def sides(row: str, col: str) -> Quantizer:
    return HybridQuantizer(rowwise_quantizer=MAKERS[row](), columnwise_quantizer=MAKERS[col]())


def refused(**answers: Callable[[], Quantizer]) -> set[str]:
    def factory(role: Any) -> Quantizer:
        return answers[role.tensor_type]()

    messages = {
        f.hit.message.partition(":")[0]
        for f in audit_model(one_layer(), factory).findings
        if f.code.name in CODES
    }
    return messages & {"fprop", "dgrad", "wgrad"}


PAIRS = list(itertools.combinations_with_replacement(MAKERS, 2))


@pytest.mark.parametrize(("one", "two"), PAIRS)
def test_every_pair_in_fprop_and_wgrad(one: str, two: str) -> None:
    left, right = MAKERS[one](), MAKERS[two]()
    expected = set()
    if incompatibility(left.rowwise_format, right.rowwise_format):
        expected.add("fprop")
    if incompatibility(left.columnwise_format, right.columnwise_format):
        expected.add("wgrad")
    found = refused(
        input=lambda: sides(one, two),
        weight=lambda: sides(two, "mxfp8"),
        grad_output=lambda: sides("mxfp8", one),
    )
    assert found == expected


@pytest.mark.parametrize("one", MAKERS)
def test_every_format_in_dgrad(one: str) -> None:
    formats = MAKERS["mxfp8"]().rowwise_format, MAKERS[one]().columnwise_format
    found = refused(
        input=lambda: sides("mxfp8", "mxfp8"),
        weight=lambda: sides("mxfp8", one),
        grad_output=lambda: sides("mxfp8", "mxfp8"),
    )
    assert found == ({"dgrad"} if incompatibility(*formats) else set())
