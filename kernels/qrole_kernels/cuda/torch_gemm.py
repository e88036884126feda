"""Products of quantized operands by torch's scaled matmul: y (M, N) = left (M, K) @ right (N, K).T.

torch, that is cuBLAS, multiplies elements and block scales and accumulates; what is left of the
emulation follows in a kernel of ours, step by step as there: scales of tensors and rows or the amax
of both sides, the bias, one rounding. Results on hardware differ from the emulation's in the order
of the sums, and where tensor cores keep fewer bits than fp32 while they add, in these bits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import ScalingType, SwizzleType, scaled_mm

from qrole_kernels import ops
from qrole_kernels.cuda.finish import finish
from qrole_kernels.cuda.operands import ALIGNMENT, FP8_DTYPES, aligned
from qrole_kernels.operand import Operand


@dataclass(frozen=True)
class Layout:
    """How torch wants an operand of a format.

    Attributes:
        recipe: torch's name for what the scales stand for.
        scale: The scales of an operand, laid out.
        rows: Rows of the data are padded to a multiple of it.
        columns: The same of bytes along K.
        swizzle: torch's name for the order of the scales.
    """

    recipe: ScalingType
    scale: Callable[[Operand], Tensor]
    rows: int = ALIGNMENT
    columns: int = ALIGNMENT
    swizzle: SwizzleType = SwizzleType.NO_SWIZZLE


def gemm(
    left: Operand, right: Operand, out_dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:
    """The product of two operands of one family that torch multiplies, plus bias (N,).

    Returns:
        (M, N) of `out_dtype`: accumulated in fp32, the bias included, and rounded once.
    """
    return finish(multiply(left, right), left, right, out_dtype, bias)


def multiply(left: Operand, right: Operand) -> Tensor:
    """The fp32 sums (M, N) of products of elements and block scales."""
    m, n = left.shape[0], right.shape[0]
    if 0 in (m, n, left.shape[1]):
        return torch.zeros((m, n), device=left.data.device)
    a, b = LAYOUTS[left.format], LAYOUTS[right.format]
    sums = scaled_mm(
        _data(left, a),
        _data(right, b).t(),
        a.scale(left),
        a.recipe,
        b.scale(right),
        b.recipe,
        a.swizzle,
        b.swizzle,
        # A narrower result may be added up from parts of K that were rounded already.
        output_dtype=torch.float32,
        use_fast_accum=False,
    )
    return sums[:m, :n]


def _data(operand: Operand, layout: Layout) -> Tensor:
    codes = aligned(operand.data, layout.rows, layout.columns)
    if operand.format == "nvfp4":
        return codes.view(torch.float4_e2m1fn_x2)
    return codes.view(FP8_DTYPES[operand.element])


def _scale(operand: Operand) -> Tensor:
    assert operand.scale is not None
    return operand.scale


def _one(operand: Operand) -> Tensor:
    """The scales of tensors and rows come after the product."""
    return torch.ones((), device=operand.data.device)


def _outer_major(operand: Operand) -> Tensor:
    """(R, C) with neighbouring rows next to each other in memory; as many rows as the data."""
    return ops.pad_scales(_scale(operand).t(), 1, ALIGNMENT).contiguous().t()


def _inner_major(operand: Operand) -> Tensor:
    """(roundup(C, 4), R) with neighbouring blocks along K next to each other in memory."""
    return ops.pad_scales(_scale(operand), 1, 4).contiguous().t()


def _mx_scale(operand: Operand) -> Tensor:
    return ops.swizzle_scales(_scale(operand)).view(torch.float8_e8m0fnu)


def _nvfp4_scale(operand: Operand) -> Tensor:
    return ops.swizzle_scales(_scale(operand)).view(torch.float8_e4m3fn)


_SWIZZLED = SwizzleType.SWIZZLE_32_4_4
LAYOUTS = {
    "fp8_tensor": Layout(ScalingType.TensorWise, _one),
    "fp8_rows": Layout(ScalingType.TensorWise, _one),
    "fp8_block_1d": Layout(ScalingType.BlockWise1x128, _outer_major, columns=128),
    "fp8_block_2d": Layout(ScalingType.BlockWise128x128, _inner_major, rows=128, columns=128),
    "mxfp8": Layout(ScalingType.BlockWise1x32, _mx_scale, columns=32, swizzle=_SWIZZLED),
    "nvfp4": Layout(ScalingType.BlockWise1x16, _nvfp4_scale, swizzle=_SWIZZLED),
}
