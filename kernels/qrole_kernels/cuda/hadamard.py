"""The random Hadamard transform of NVFP4's wgrad operands."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from qrole_kernels.cuda.launch import architecture, launch
from qrole_kernels.cuda.rounding import to_output
from qrole_kernels.cuda.tiles import (
    Tile,
    column_major,
    load_runs,
    matrix_arguments,
    store_tile,
    tile_origin,
    vector_of,
    widen,
)
from qrole_kernels.reference.hadamard import SIGN_MASK, check_transformable


@triton.jit
def _butterfly(groups, STRIDE: tl.constexpr):
    # (N, 16): elements STRIDE apart become their sum and their difference.
    COUNT: tl.constexpr = groups.shape[0]
    PAIRS: tl.constexpr = 8 // STRIDE
    apart = tl.permute(tl.reshape(groups, (COUNT, PAIRS, 2, STRIDE)), (0, 1, 3, 2))
    a, b = tl.split(apart)
    return tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 1, 3, 2)), (COUNT, 16))


@triton.jit
def hadamard_kernel(
    x,
    out,
    M,
    K,
    stride_m,
    stride_k,
    SIGN_MASK: tl.constexpr,
    VECTOR: tl.constexpr,
    ARCH: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLS: tl.constexpr,
):
    """``out``: groups of 16 along the rows of ``x``, transformed."""
    row0, col0 = tile_origin(K, TILE_ROWS, TILE_COLS)
    runs = load_runs(x, row0, col0, M, K, stride_m, stride_k, 16, VECTOR, TILE_ROWS, TILE_COLS)
    tile = widen(runs)
    negative = (SIGN_MASK >> tl.arange(0, 16)) & 1
    groups = tl.reshape(tile, (TILE_ROWS * TILE_COLS // 16, 16))
    groups = groups * tl.where(negative == 1, -0.25, 0.25)[None, :]
    groups = _butterfly(_butterfly(_butterfly(_butterfly(groups, 1), 2), 4), 8)
    result = tl.reshape(to_output(groups, "bf16", ARCH), (TILE_ROWS, TILE_COLS))
    store_tile(out, result, row0, col0, M, K)


def hadamard16(x: Tensor, sign_mask: int = SIGN_MASK) -> Tensor:
    """Transform groups of 16 along the last dimension of bf16 (M, K), K a multiple of 16.

    Raises:
        ArgumentError: Wrong dtype or K.
    """
    check_transformable(x)
    arch = architecture(x.device)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tile = Tile(128, 128) if column_major(x) else Tile(32, 128)
    launch(
        hadamard_kernel,
        tile.programs(*x.shape),
        matrix_arguments(x) | {"out": out},
        tile.constants() | {"SIGN_MASK": sign_mask, "VECTOR": vector_of(x), "ARCH": arch},
    )
    return out
