"""What follows the sums of a product: factors, bias, and the one rounding, in this order."""

from typing import Any

import torch
from torch import Tensor

from qrole_kernels.cuda.gemm_kernels import finish_gemm_kernel
from qrole_kernels.cuda.launch import DTYPE_NAMES, architecture, launch
from qrole_kernels.cuda.tiles import Tile
from qrole_kernels.operand import Operand
from qrole_kernels.reference.arguments import check_choice

TILE = Tile(32, 128)
"""Rows and columns of the result that one program finishes."""
FACTORS = {"fp8_tensor": "scales", "nvfp4": "amax"}
"""What is multiplied in last, by family."""

Arguments = dict[str, Any]
Constants = dict[str, Any]


def finish(
    sums: Tensor,
    left: Operand,
    right: Operand,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """The product of two operands from the sums of their elements' products, plus bias (N,).

    Args:
        sums: fp32 (M, N), block scales included; neighbours of a row lie next to each other.
        left: The left operand (M, K).
        right: The right operand (N, K).
        out_dtype: Of the result.
        bias: Added in fp32.

    Returns:
        (M, N) of `out_dtype`.
    """
    arguments, constants = ending(left, right, out_dtype, bias)
    factors = FACTORS.get(left.family, "none")
    for side, operand in (("left", left), ("right", right)):
        values = operand.amax if factors == "amax" else operand.scale
        assert values is not None
        # The kernel does not read what stands in for missing factors.
        factor = column(values) if factors != "none" else values
        arguments |= {side: factor, f"{side}_stride": factor.stride(0)}
    launch(
        finish_gemm_kernel,
        TILE.programs(*sums.shape),
        {"sums": sums, "sums_stride_m": sums.stride(0), **arguments},
        constants
        | {"FACTORS": factors, "AMAX_FACTOR": amax_factor(left, right)}
        | TILE.constants(),
    )
    result: Tensor = arguments["out"]
    return result


def ending(
    left: Operand, right: Operand, out_dtype: torch.dtype, bias: Tensor | None
) -> tuple[Arguments, Constants]:
    """The result (M, N), `out`, and the bias as a kernel's arguments and constants."""
    check_choice("out_dtype", out_dtype, tuple(DTYPE_NAMES))
    m, n = left.shape[0], right.shape[0]
    out = torch.empty((m, n), dtype=out_dtype, device=left.data.device)
    # The kernel does not read what stands in for a missing bias.
    addend = out if bias is None else bias.contiguous()
    constants = {
        "HAS_BIAS": bias is not None,
        "OUTPUT": DTYPE_NAMES[out_dtype],
        "ARCH": architecture(out.device),
    }
    return {"out": out, "bias": addend, "M": m, "N": n}, constants


def column(values: Tensor) -> Tensor:
    """One value per row as (R, 1); one for all rows with a stride of 0."""
    per_row = values.reshape(-1, 1)
    return per_row.as_strided((1, 1), (0, 0)) if per_row.numel() == 1 else per_row


def amax_factor(left: Operand, right: Operand) -> float:
    """What the product of both amax is multiplied with, for NVFP4."""
    return 1 / (36 * left.e4m3_max * right.e4m3_max)
