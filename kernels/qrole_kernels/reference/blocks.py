"""Absolute maxima, and matrices cut into blocks; elements missing in edge blocks count as zero."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from qrole_kernels.reference.arguments import as_float32


def ceil_div(a: int, b: int) -> int:
    """Number of blocks of `b` that cover `a`."""
    return -(-a // b)


def _magnitude(x: Tensor) -> Tensor:
    """|x| with NaN as zero: the kernels' maximum ignores NaN."""
    return x.abs().nan_to_num(nan=0.0, posinf=torch.inf)


def amax(x: Tensor) -> Tensor:
    """Largest |x| of a matrix (M, K) as an fp32 scalar; NaN is ignored, an empty matrix has 0."""
    magnitude = _magnitude(as_float32(x))
    return magnitude.max() if magnitude.numel() else magnitude.new_zeros(())


def amax_rows(x: Tensor) -> Tensor:
    """Largest |x| of each row of a matrix (M, K), fp32 (M,)."""
    magnitude = _magnitude(as_float32(x))
    return magnitude.amax(1) if magnitude.shape[1] else magnitude.new_zeros(magnitude.shape[0])


def split_blocks(x: Tensor, rows: int, cols: int) -> Tensor:
    """View (M, K), padded with zeros, as (M blocks, rows, K blocks, cols)."""
    m_blocks, k_blocks = ceil_div(x.shape[0], rows), ceil_div(x.shape[1], cols)
    padded = pad(x, (0, k_blocks * cols - x.shape[1], 0, m_blocks * rows - x.shape[0]))
    return padded.view(m_blocks, rows, k_blocks, cols)


def block_amax(x: Tensor, rows: int, cols: int) -> Tensor:
    """Largest |x| of each block of an fp32 matrix (M, K), fp32 (ceil(M/rows), ceil(K/cols))."""
    return _magnitude(split_blocks(x, rows, cols)).amax((1, 3))


def expand_blocks(scales: Tensor, rows: int, cols: int, shape: torch.Size) -> Tensor:
    """Repeat one value per block over the block's elements, cut to `shape` (M, K)."""
    tall = scales.repeat_interleave(rows, 0)[: shape[0]]
    return tall.repeat_interleave(cols, 1)[:, : shape[1]]
