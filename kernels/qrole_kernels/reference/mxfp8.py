"""MXFP8: one E8M0 scale per 32 elements."""

import torch
from torch import Tensor

from qrole_kernels.formats import fp8_format
from qrole_kernels.reference.arguments import as_float32, check_choice, check_shape
from qrole_kernels.reference.blocks import block_amax, ceil_div, expand_blocks
from qrole_kernels.reference.elements import (
    decode_e8m0,
    decode_fp8,
    encode_e8m0_up,
    encode_fp8,
    reciprocal_e8m0,
)

BLOCKS = ((1, 32), (32, 1), (32, 32))


def quantize_mxfp8(
    x: Tensor, element: str, block_rows: int, block_cols: int
) -> tuple[Tensor, Tensor]:
    """Quantize (M, K) in blocks of (1, 32) row-wise, (32, 1) column-wise or (32, 32).

    Returns:
        Codes uint8 (M, K), E8M0 scales uint8 (ceil(M/block_rows), ceil(K/block_cols)).
    """
    check_choice("(block_rows, block_cols)", (block_rows, block_cols), BLOCKS)
    wide = as_float32(x)
    amax = block_amax(wide, block_rows, block_cols)
    # The kernels multiply by the fp32 reciprocal of the largest value.
    scale = encode_e8m0_up(amax * torch.full_like(amax, 1.0 / fp8_format(element).max))
    factor = expand_blocks(reciprocal_e8m0(scale), block_rows, block_cols, x.shape)
    return encode_fp8(wide * factor, element), scale


def dequantize_mxfp8(
    data: Tensor,
    scale: Tensor,
    element: str,
    block_rows: int,
    block_cols: int,
    dtype: torch.dtype,
) -> Tensor:
    """Decode codes (M, K) with compact E8M0 scales: fp32 product, one rounding to `dtype`."""
    check_choice("(block_rows, block_cols)", (block_rows, block_cols), BLOCKS)
    blocks = (ceil_div(data.shape[0], block_rows), ceil_div(data.shape[1], block_cols))
    check_shape("scale", scale, blocks)
    scales = expand_blocks(decode_e8m0(scale), block_rows, block_cols, data.shape)
    return (scales * decode_fp8(data, element)).to(dtype)
