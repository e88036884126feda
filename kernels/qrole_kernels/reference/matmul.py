"""Products of matrices in fp32, and the block-wise accumulation of FP8 with fp32 block scales."""

import torch
from torch import Tensor

from qrole_kernels.reference.arguments import check_choice, check_shape
from qrole_kernels.reference.blocks import ceil_div

BLOCK = 128
PAIRS = ((1, 1), (1, BLOCK), (BLOCK, 1))


def matmul_f32(a: Tensor, b: Tensor, bf16_exact: bool) -> Tensor:
    """The product a @ b.T of fp32 matrices (M, K) and (N, K), accumulated in fp32: (M, N).

    Args:
        a: fp32 (M, K).
        b: fp32 (N, K).
        bf16_exact: The caller's word that all values are bf16 numbers and none is subnormal there;
            bf16 matrix units may then be used, which makes no difference but the order of sums.
    """
    return a @ b.t()


def matmul_fp8_block(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_block_rows: int,
    b_block_rows: int,
) -> Tensor:
    """The product of FP8-block operands whose scales can't be folded into their elements.

    Per block of 128 along K: total = fma(partial * first, second, total) in fp32, where `first` is
    the scale of the 1x128 operand, and of `b` when both are 1x128 (Hopper's cuBLAS).

    Args:
        a: fp32 (M, K), the FP8 values without their scales.
        b: fp32 (N, K), likewise.
        a_scale: fp32 (ceil(M/a_block_rows), ceil(K/128)).
        b_scale: fp32 (ceil(N/b_block_rows), ceil(K/128)).
        a_block_rows: 1 or 128.
        b_block_rows: 1 or 128; not both 128.

    Returns:
        fp32 (M, N).
    """
    first, second = block_factors(a, b, a_scale, b_scale, a_block_rows, b_block_rows)
    total = a.new_zeros(a.shape[0], b.shape[0])
    for i in range(first.shape[0]):
        k = slice(i * BLOCK, (i + 1) * BLOCK)
        total = fma((a[:, k] @ b[:, k].t()) * first[i], second[i], total)
    return total


def block_factors(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_block_rows: int,
    b_block_rows: int,
) -> tuple[Tensor, Tensor]:
    """The factors of `matmul_fp8_block` in the order of their use.

    Returns:
        For each block along K the scales of all rows of one operand: (blocks, M, 1) those of `a`,
        (blocks, 1, N) those of `b`.
    """
    check_choice("(a_block_rows, b_block_rows)", (a_block_rows, b_block_rows), PAIRS)
    blocks = ceil_div(a.shape[1], BLOCK)
    check_shape("a_scale", a_scale, (ceil_div(a.shape[0], a_block_rows), blocks))
    check_shape("b_scale", b_scale, (ceil_div(b.shape[0], b_block_rows), blocks))
    column = a_scale.repeat_interleave(a_block_rows, 0)[: a.shape[0]].t().contiguous()[:, :, None]
    row = b_scale.repeat_interleave(b_block_rows, 0)[: b.shape[0]].t().contiguous()[:, None, :]
    return (column, row) if b_block_rows == BLOCK else (row, column)


def fma(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Fused x * y + z: one rounding to fp32, of a sum that was rounded to odd in fp64."""
    product, addend = x.double() * y.double(), z.double()
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    bits = total.view(torch.int64)
    inexact = (error != 0) & (bits & 1 == 0) & total.isfinite()
    away = (error > 0) == (total > 0)
    step = torch.where(away, 1, -1) * inexact
    return (bits + step).view(torch.float64).float()
