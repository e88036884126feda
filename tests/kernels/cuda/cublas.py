"""What cuBLAS is documented to compute from the arguments of torch's scaled matmul, in plain torch.

The rules on sizes, strides and dtypes are those that torch's CUDA sources check and that cuBLAS
states for its scale layouts.
"""

import torch
from torch import Tensor
from torch.nn.functional import ScalingType, SwizzleType

from qrole_kernels.reference.elements import decode_e2m1, unpack_nibbles

E4M3, E5M2, E2M1 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2
SCALE_DTYPES = {
    ScalingType.TensorWise: torch.float32,
    ScalingType.BlockWise1x128: torch.float32,
    ScalingType.BlockWise128x128: torch.float32,
    ScalingType.BlockWise1x32: torch.float8_e8m0fnu,
    ScalingType.BlockWise1x16: torch.float8_e4m3fn,
}
BLOCK = {ScalingType.BlockWise1x32: 32, ScalingType.BlockWise1x16: 16}


def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    recipe_a: ScalingType,
    scale_b: Tensor,
    recipe_b: ScalingType,
    swizzle_a: SwizzleType,
    swizzle_b: SwizzleType,
    output_dtype: torch.dtype,
    use_fast_accum: bool,
) -> Tensor:
    """The product a (M, K) @ b (K, N): fp32 (M, N), every sum exact and rounded once."""
    assert (output_dtype, use_fast_accum) == (torch.float32, False)
    _check_dtypes(a, b, recipe_a, recipe_b)
    assert b.shape[1] % 16 == 0
    left = _values(a, scale_a, recipe_a, swizzle_a)
    right = _values(b.t(), scale_b, recipe_b, swizzle_b)
    return (left @ right.t()).float()


def _check_dtypes(a: Tensor, b: Tensor, recipe_a: ScalingType, recipe_b: ScalingType) -> None:
    if recipe_a == ScalingType.TensorWise:
        assert {a.dtype, b.dtype} in ({E4M3}, {E4M3, E5M2})
    elif recipe_a == ScalingType.BlockWise1x16:
        assert {a.dtype, b.dtype} == {E2M1}
    else:
        assert {a.dtype, b.dtype} == {E4M3}
    assert recipe_a == recipe_b or {recipe_a, recipe_b} == {
        ScalingType.BlockWise1x128,
        ScalingType.BlockWise128x128,
    }


def _values(x: Tensor, scale: Tensor, recipe: ScalingType, swizzle: SwizzleType) -> Tensor:
    """fp64 (R, K) of row-major data and their scales."""
    rows, width = x.shape
    assert x.stride() == (width, 1)
    assert width % 16 == 0
    assert x.storage_offset() % 16 == 0
    assert scale.dtype == SCALE_DTYPES[recipe]
    is_swizzled = recipe in BLOCK
    assert (swizzle == SwizzleType.SWIZZLE_32_4_4) == is_swizzled
    codes = x.view(torch.uint8)
    values = decode_e2m1(unpack_nibbles(codes)) if x.dtype == E2M1 else codes.view(x.dtype).float()
    row, col = torch.meshgrid(torch.arange(rows), torch.arange(values.shape[1]), indexing="ij")
    if is_swizzled:
        factor = _swizzled(
            scale, row, col // BLOCK[recipe], rows, -(-values.shape[1] // BLOCK[recipe])
        )
    else:
        factor = _SCALES[recipe](scale, row, col, rows, values.shape[1])
    return values.double() * factor.double()


def _swizzled(scale: Tensor, row: Tensor, block: Tensor, rows: int, blocks: int) -> Tensor:
    """Tiles of 128 rows and 4 blocks in 512 bytes, one after the other along the blocks."""
    tiles_along = -(-blocks // 4)
    assert scale.is_contiguous()
    assert scale.numel() == -(-rows // 128) * tiles_along * 512
    tile = row // 128 * tiles_along + block // 4
    place = tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4
    return scale.flatten()[place.flatten()].float().view(place.shape)


def _tensor_wise(scale: Tensor, row: Tensor, col: Tensor, rows: int, k: int) -> Tensor:
    assert scale.numel() == 1
    return scale.reshape(1, 1)


def _block_1x128(scale: Tensor, row: Tensor, col: Tensor, rows: int, k: int) -> Tensor:
    """Scales of neighbouring rows are neighbours, and their distance along K a multiple of 4."""
    assert scale.shape == (rows, -(-k // 128))
    assert scale.stride() == (1, rows)
    assert rows % 4 == k % 128 == 0
    return scale[row, col // 128]


def _block_128x128(scale: Tensor, row: Tensor, col: Tensor, rows: int, k: int) -> Tensor:
    """(blocks along K, blocks along R), the first contiguous and padded to a multiple of 4."""
    padded = -(-k // 512) * 4
    assert scale.shape == (padded, -(-rows // 128))
    assert scale.stride() == (1, padded)
    assert rows % 128 == k % 128 == 0
    return scale[col // 128, row // 128]


_SCALES = {
    ScalingType.TensorWise: _tensor_wise,
    ScalingType.BlockWise1x128: _block_1x128,
    ScalingType.BlockWise128x128: _block_128x128,
}
