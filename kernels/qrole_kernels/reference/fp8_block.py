"""FP8 with one fp32 scale per 1x128 or 128x128 block."""

import torch
from torch import Tensor

from qrole_kernels.reference.arguments import as_float32, check_choice, check_shape
from qrole_kernels.reference.blocks import block_amax, ceil_div, expand_blocks
from qrole_kernels.reference.elements import decode_fp8, encode_fp8
from qrole_kernels.reference.fp8 import fp8_scale

BLOCK = 128


def quantize_fp8_block(
    x: Tensor, element: str, block_rows: int, power_of_two: bool = True, epsilon: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Quantize (M, K) in blocks of (block_rows, 128), block_rows 1 or 128.

    Returns:
        Codes uint8 (M, K), 1/scale fp32 (ceil(M/block_rows), ceil(K/128)).
    """
    check_choice("block_rows", block_rows, (1, BLOCK))
    wide = as_float32(x)
    amax = block_amax(wide, block_rows, BLOCK)
    scale = fp8_scale(amax, element, power_of_two, epsilon, torch.finfo(x.dtype).max)
    codes = encode_fp8(wide * expand_blocks(scale, block_rows, BLOCK, x.shape), element)
    return codes, 1.0 / scale


def dequantize_fp8_block(
    data: Tensor, scale_inv: Tensor, element: str, block_rows: int, dtype: torch.dtype
) -> Tensor:
    """Decode codes (M, K) with compact block scales: fp32 product, one rounding to `dtype`."""
    check_choice("block_rows", block_rows, (1, BLOCK))
    blocks = (ceil_div(data.shape[0], block_rows), ceil_div(data.shape[1], BLOCK))
    check_shape("scale_inv", scale_inv, blocks)
    scales = expand_blocks(scale_inv, block_rows, BLOCK, data.shape)
    return (decode_fp8(data, element) * scales).to(dtype)
