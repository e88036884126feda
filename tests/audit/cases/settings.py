"""Mistakes in what the audit is asked for."""

from __future__ import annotations

from qrole.factories.builtin import mxfp8_factory
from tests.audit.building import case, one_layer, planned, tree

CASES = [
    case(
        "an ignore whose reason is gone",
        "QR001",
        planned(one_layer, mxfp8_factory, ignore=("QR501",)),
        planned(lambda: tree(lm_head=(256, 256)), mxfp8_factory, ignore=("QR501",)),
    ),
    case(
        "an ignore for a module that the model no longer has",
        "QR001",
        planned(
            lambda: tree(lm_head=(256, 256)),
            mxfp8_factory,
            module_ignores={"lm_head": ("QR501",), "old_head": ("QR501",)},
        ),
        planned(
            lambda: tree(lm_head=(256, 256)),
            mxfp8_factory,
            module_ignores={"lm_*": ("QR501",)},
        ),
    ),
    case(
        "an ignore of a family in which nothing was found",
        "QR001",
        planned(one_layer, mxfp8_factory, ignore=("QR3",)),
        planned(one_layer, mxfp8_factory, ignore=("QR3",), select=("QR5",)),
    ),
]
