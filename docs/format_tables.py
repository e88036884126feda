"""Tables of the pages on number formats and on budgets, from the source."""

from __future__ import annotations

import math

from docs.markdown import cell, table
from docs.schemas import attributes
from qrole.comparing import budgets
from qrole.comparing.report import (
    GemmReport,
    LayerReport,
    ModelReport,
    ParameterReport,
    SlotReport,
    TrainingReport,
)
from qrole_kernels.formats import ELEMENT_FORMATS, ElementFormat

__all__ = ["element_table", "metric_table"]

_TARGETS = {
    "slot": ("`weight`, `linear/input`, `dpa/*`: a glob on roles", SlotReport),
    "gemm": ("`fprop`, `dgrad`, `wgrad`, `gemm` for all three", GemmReport),
    "layer": ("`layer`", LayerReport),
    "gradient": ("`gradient`", ParameterReport),
    "model": ("`model`, or the output by its name: `logits`, `output`", ModelReport),
    "training": ("`training`, with `--steps`", TrainingReport),
}


def element_table() -> str:
    """Every element format."""
    rows = [_element(element) for element in ELEMENT_FORMATS.values()]
    columns = (
        "element",
        "exponent, mantissa bits",
        "bias",
        "largest",
        "smallest normal",
        "smallest subnormal",
        "NaN is cast to",
    )
    return table(columns, rows)


def _element(element: ElementFormat) -> tuple[str, ...]:
    subnormal = _power(element.min_subnormal) if element.mantissa_bits else ""
    nan = element.value(element.nan_cast)
    code = f"0x{element.nan_cast:02X}"
    return (
        element.name.upper() + ("" if element.signed else " (scales)"),
        f"{element.exponent_bits}, {element.mantissa_bits}",
        str(element.bias),
        f"{element.max:g}" if element.max < 1e6 else _power(element.max),
        _power(element.min_normal),
        subnormal,
        f"{code}, NaN" if nan != nan else f"{code}, the value {nan:g}",
    )


def _power(value: float) -> str:
    """A power of two; small exponents as a number."""
    exponent = int(math.log2(value))
    return f"{value:g}" if -2 < exponent < 12 else f"2^{exponent}"


def metric_table() -> str:
    """What a budget can look at, and the metrics of each."""
    rows = []
    for kind, (written, report) in _TARGETS.items():
        meanings = attributes(report)
        for i, metric in enumerate(budgets.METRICS[kind]):
            rows.append((written if i == 0 else "", f"`{metric}`", cell(meanings[metric])))
    return table(("target", "metric", "meaning"), rows)
