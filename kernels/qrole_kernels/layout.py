"""Scale layouts that GEMMs want: padding, the 128x4 tiles of cuBLAS, FP8-block scales.

A tile holds the scales of 128 rows and 4 columns in 512 consecutive bytes; row i, column j of a
tile is byte (i % 32) * 16 + (i // 32) * 4 + j. Tiles follow each other along the columns first.
"""

from torch import Tensor
from torch.nn.functional import pad

from qrole_kernels.errors import ArgumentError

TILE_ROWS = 128
TILE_COLS = 4


def _missing(size: int, multiple: int) -> int:
    return -size % multiple


def pad_scales(
    scale: Tensor, row_multiple: int = TILE_ROWS, col_multiple: int = TILE_COLS
) -> Tensor:
    """Pad compact scales (R, C) with zeros to multiples of (row_multiple, col_multiple).

    Row-wise scales take the default; column-wise MXFP8 scales (M/32, K) take (4, 128).
    """
    rows, cols = scale.shape
    return pad(scale, (0, _missing(cols, col_multiple), 0, _missing(rows, row_multiple)))


def swizzle_scales(scale: Tensor) -> Tensor:
    """Bring scales (R, C), compact or padded, into 128x4 tiles: a flat tensor, padding bytes 0.

    Column-wise MXFP8 scales (M/32, K) are swizzled as their transpose.
    """
    padded = pad_scales(scale)
    tiles_r, tiles_c = padded.shape[0] // TILE_ROWS, padded.shape[1] // TILE_COLS
    return padded.view(tiles_r, 4, 32, tiles_c, TILE_COLS).permute(0, 3, 2, 1, 4).flatten()


def check_swizzled(swizzled: Tensor, rows: int, cols: int) -> tuple[int, int]:
    """Check that swizzled scales belong to the compact (rows, cols); the padded shape.

    Raises:
        ArgumentError: The number of scales isn't that of the padded (rows, cols).
    """
    padded_rows, padded_cols = rows + _missing(rows, TILE_ROWS), cols + _missing(cols, TILE_COLS)
    if swizzled.numel() != padded_rows * padded_cols:
        raise ArgumentError(
            f"{swizzled.numel()} swizzled scales for ({rows}, {cols})",
            f"{padded_rows * padded_cols}, the padded {padded_rows} x {padded_cols}",
            "Pass the compact shape that was swizzled.",
        )
    return padded_rows, padded_cols


def unswizzle_scales(swizzled: Tensor, rows: int, cols: int) -> Tensor:
    """Undo `swizzle_scales`: the compact scales (rows, cols).

    Raises:
        ArgumentError: The number of scales isn't that of the padded (rows, cols).
    """
    padded_rows, padded_cols = check_swizzled(swizzled, rows, cols)
    tiles = swizzled.view(padded_rows // TILE_ROWS, padded_cols // TILE_COLS, 32, 4, TILE_COLS)
    return tiles.permute(0, 3, 2, 1, 4).reshape(padded_rows, padded_cols)[:rows, :cols].contiguous()


def gemm_fp8_block_scales(scale_inv: Tensor, block_rows: int) -> Tensor:
    """Bring compact FP8-block scales into the layout that Hopper's GEMM reads, padding 0.

    1x128 blocks (R, C) become (C, roundup(R, 4)), 128x128 blocks (R, roundup(C, 4)).
    """
    outer = scale_inv.t() if block_rows == 1 else scale_inv
    return pad(outer, (0, _missing(outer.shape[1], 4))).contiguous()
