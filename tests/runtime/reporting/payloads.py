"""JSON as the commands print it, made up at any size."""

from __future__ import annotations

import math
from typing import Any

_KINDS = ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
_READS = (("input", "rowwise"), ("weight", "rowwise"), ("grad_output", "columnwise"))


def compare(layers: int = 3, candidates: int = 1, loss: bool = False) -> dict[str, Any]:
    """What `qrole compare --json` prints for a model of `layers` blocks."""
    payload: dict[str, Any] = {
        "schema": "qrole.compare/1",
        "model": "made-up",
        "reference": "high_precision",
        "data": {"source": "text", "samples": 4},
        "seed": 0,
        "candidates": [_candidate(f"factory{i}", layers, i) for i in range(candidates)],
    }
    if loss:
        payload["sensitivity"] = {"factory0": [{"group": "linear/weight", "kl": 0.1}]}
        payload["training"] = [{"name": "reference", "losses": [3.0, 2.0, 1.5]}]
    return payload


def _candidate(name: str, layers: int, shift: int) -> dict[str, Any]:
    modules = [(f"model.layers.{i}.{kind}", i) for i in range(layers) for kind in _KINDS]
    slots = [
        {
            "slot": f"{module}:forward[0]",
            "module": module,
            "operand": operand,
            "usage": usage,
            "format": "MXFP8 E4M3",
            "sqnr_db": 30.0 - shift + 5 * math.sin(depth / 7),
            "mse": 1e-4,
        }
        for module, depth in modules
        for operand, usage in _READS
    ]
    gemms = [
        {"module": module, "group": "", "gemm": gemm, "sqnr_db": 25.0 - depth / 50}
        for module, depth in modules
        for gemm in ("fprop", "dgrad", "wgrad")
    ]
    outputs = [
        {"module": module, "group": "", "formats": "MXFP8 x MXFP8", "sqnr_db": None, "cosine": 1.0}
        for module, _ in modules
    ]
    model = {"output": "logits", "sqnr_db": 20.0, "kl": 0.01, "first_nonfinite": ""}
    return {"factory": name, "slots": slots, "gemms": gemms, "layers": outputs, "model": model}


def audit() -> dict[str, Any]:
    """What `qrole audit --json` prints, two findings."""
    finding = {"code": "QR501", "severity": "warning", "meaning": "head", "where": "lm_head"}
    return {
        "schema": "qrole.audit/1",
        "model": "made-up",
        "findings": [
            {**finding, "message": "lm_head is quantized"},
            {**finding, "code": "QR301", "severity": "error", "message": "formats do not <pair>"},
        ],
    }
