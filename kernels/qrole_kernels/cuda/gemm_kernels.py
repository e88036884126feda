"""Triton kernels of the products of quantized operands; `gemm` chooses among them.

``a`` (M, K) and ``b`` (N, K) are the operands, ``out`` (M, N) is the result.
"""

import triton
import triton.language as tl

from qrole_kernels.cuda.rounding import decode_e2m1_pairs, decode_fp8, to_output
from qrole_kernels.cuda.tiles import widen


@triton.jit
def _tile_of_program(M, N, TILE_M: tl.constexpr, TILE_N: tl.constexpr):
    """First row and column of this program's tile; eight tile rows share their columns of B."""
    GROUP: tl.constexpr = 8
    tiles_m, tiles_n = tl.cdiv(M, TILE_M), tl.cdiv(N, TILE_N)
    program = tl.program_id(0)
    first = program // (GROUP * tiles_n) * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    place = program % (GROUP * tiles_n)
    return (first + place % height) * TILE_M, place // height * TILE_N


@triton.jit
def _load_step(x, rows, M, col0, K, stride_m, stride_k, STEP: tl.constexpr):
    """(R, STEP) columns from ``col0`` on; zero beyond the matrix."""
    cols = col0 + tl.arange(0, STEP)
    offsets = rows.to(tl.int64)[:, None] * stride_m + cols.to(tl.int64)[None, :] * stride_k
    return tl.load(x + offsets, mask=(rows[:, None] < M) & (cols[None, :] < K), other=0.0)


@triton.jit
def _load_factor(factor, rows, M, stride):
    """(R,) fp32, one per row, or one for all with stride 0."""
    return tl.load(factor + rows.to(tl.int64) * stride, mask=rows < M, other=0.0)


@triton.jit
def _load_block_scale(scale, row0, M, stride, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """(TILE,) scales of rows that have one each, or the (1,) that a tile shares."""
    # A tile starts at a multiple of its size, so that a block of 128 rows holds it.
    tl.static_assert(BLOCK == 1 or TILE <= BLOCK)
    rows = row0 + tl.arange(0, TILE if BLOCK == 1 else 1)
    return tl.load(scale + (rows // BLOCK).to(tl.int64) * stride, mask=rows < M, other=0.0)


@triton.jit
def _times_scales(y, left, right, rows, cols, M, N, left_stride, right_stride):
    """``y`` times the scale of each row, then times that of each column."""
    y *= _load_factor(left, rows, M, left_stride)[:, None]
    return y * _load_factor(right, cols, N, right_stride)[None, :]


@triton.jit
def _times_amax(
    y, left, right, rows, cols, M, N, left_stride, right_stride, AMAX_FACTOR: tl.constexpr
):
    """``y`` times one factor: the amax of the row and of the column, times AMAX_FACTOR."""
    row_amax = _load_factor(left, rows, M, left_stride)
    col_amax = _load_factor(right, cols, N, right_stride)
    return y * (row_amax[:, None] * col_amax[None, :] * AMAX_FACTOR)


@triton.jit
def _finish(
    y,
    bias,
    out,
    rows,
    cols,
    M,
    N,
    HAS_BIAS: tl.constexpr,
    OUTPUT: tl.constexpr,
    ARCH: tl.constexpr,
):
    if HAS_BIAS:
        y += widen(tl.load(bias + cols, mask=cols < N, other=0.0))[None, :]
    places = rows.to(tl.int64)[:, None] * N + cols[None, :]
    tl.store(out + places, to_output(y, OUTPUT, ARCH), (rows[:, None] < M) & (cols[None, :] < N))


@triton.jit
def _nvfp4_values(packed, scale, ARCH: tl.constexpr):
    """(R, P) bytes and (R, P / 8) E4M3 scales -> (R, 2P) values without amax, exact in bf16."""
    ROWS: tl.constexpr = packed.shape[0]
    BLOCKS: tl.constexpr = scale.shape[1]
    low, high = decode_e2m1_pairs(tl.reshape(packed, (ROWS, BLOCKS, 8)), ARCH)
    factor = decode_fp8(scale, "e4m3", ARCH)[:, :, None]
    values = tl.reshape(tl.join(low * factor, high * factor), (ROWS, 16 * BLOCKS))
    # The interpreter cannot multiply bf16.
    return to_output(values, "bf16" if ARCH else "fp32", ARCH)


@triton.jit
def block_scaled_gemm_kernel(
    a,
    b,
    a_scale,
    b_scale,
    a_amax,
    b_amax,
    bias,
    out,
    M,
    N,
    width,
    blocks,
    a_stride_m,
    a_stride_k,
    b_stride_m,
    b_stride_k,
    a_scale_stride_m,
    a_scale_stride_k,
    b_scale_stride_m,
    b_scale_stride_k,
    a_amax_stride,
    b_amax_stride,
    A_ELEMENT: tl.constexpr,
    B_ELEMENT: tl.constexpr,
    STEP: tl.constexpr,
    STEP_BLOCKS: tl.constexpr,
    NATIVE: tl.constexpr,
    HAS_AMAX: tl.constexpr,
    AMAX_FACTOR: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    OUTPUT: tl.constexpr,
    ARCH: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    """Product of operands whose scales lie along K, of ``width`` bytes and ``blocks`` scales a row.

    NATIVE: by block-scaled instructions. HAS_AMAX: the result is multiplied by both amax and
    AMAX_FACTOR.
    """
    row0, col0 = _tile_of_program(M, N, TILE_M, TILE_N)
    rows, cols = row0 + tl.arange(0, TILE_M), col0 + tl.arange(0, TILE_N)
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for step in range(tl.cdiv(width, STEP)):
        at, block = step * STEP, step * STEP_BLOCKS
        left = _load_step(a, rows, M, at, width, a_stride_m, a_stride_k, STEP)
        right = _load_step(b, cols, N, at, width, b_stride_m, b_stride_k, STEP)
        left_scale = _load_step(
            a_scale, rows, M, block, blocks, a_scale_stride_m, a_scale_stride_k, STEP_BLOCKS
        )
        right_scale = _load_step(
            b_scale, cols, N, block, blocks, b_scale_stride_m, b_scale_stride_k, STEP_BLOCKS
        )
        if NATIVE:
            total = tl.dot_scaled(
                left, left_scale, A_ELEMENT, tl.trans(right), right_scale, B_ELEMENT, total
            )
        else:
            total = tl.dot(
                _nvfp4_values(left, left_scale, ARCH),
                tl.trans(_nvfp4_values(right, right_scale, ARCH)),
                total,
                input_precision="ieee",
            )
    if HAS_AMAX:
        total = _times_amax(
            total, a_amax, b_amax, rows, cols, M, N, a_amax_stride, b_amax_stride, AMAX_FACTOR
        )
    _finish(total, bias, out, rows, cols, M, N, HAS_BIAS, OUTPUT, ARCH)


@triton.jit
def fp8_gemm_kernel(
    a,
    b,
    a_scale,
    b_scale,
    bias,
    out,
    M,
    N,
    K,
    a_stride_m,
    a_stride_k,
    b_stride_m,
    b_stride_k,
    a_scale_stride_m,
    a_scale_stride_k,
    b_scale_stride_m,
    b_scale_stride_k,
    A_BLOCK: tl.constexpr,
    B_BLOCK: tl.constexpr,
    IN_PLACE: tl.constexpr,
    STEP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    OUTPUT: tl.constexpr,
    ARCH: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    """Product of FP8 operands.

    A_BLOCK, B_BLOCK: rows that share a scale per STEP places of K, 1 or 128. 0: one scale for all
    places of a row, applied last. IN_PLACE: all of K accumulates on the tensor core.
    """
    row0, col0 = _tile_of_program(M, N, TILE_M, TILE_N)
    rows, cols = row0 + tl.arange(0, TILE_M), col0 + tl.arange(0, TILE_N)
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for step in range(tl.cdiv(K, STEP)):
        left = _load_step(a, rows, M, step * STEP, K, a_stride_m, a_stride_k, STEP)
        right = _load_step(b, cols, N, step * STEP, K, b_stride_m, b_stride_k, STEP)
        if IN_PLACE:
            total = tl.dot(left, tl.trans(right), total)
        else:
            partial = tl.dot(left, tl.trans(right), out_dtype=tl.float32)
            if A_BLOCK:
                row_scale = _load_block_scale(
                    a_scale + step * a_scale_stride_k, row0, M, a_scale_stride_m, A_BLOCK, TILE_M
                )[:, None]
                col_scale = _load_block_scale(
                    b_scale + step * b_scale_stride_k, col0, N, b_scale_stride_m, B_BLOCK, TILE_N
                )[None, :]
                if B_BLOCK == 128:
                    total = tl.fma(partial * row_scale, col_scale, total)
                else:
                    total = tl.fma(partial * col_scale, row_scale, total)
            else:
                # A plain sum would be folded into the accumulation on the tensor core.
                total = tl.fma(partial, 1.0, total)
    if not A_BLOCK:
        total = _times_scales(
            total, a_scale, b_scale, rows, cols, M, N, a_scale_stride_m, b_scale_stride_m
        )
    _finish(total, bias, out, rows, cols, M, N, HAS_BIAS, OUTPUT, ARCH)


@triton.jit
def finish_gemm_kernel(
    sums,
    left,
    right,
    bias,
    out,
    M,
    N,
    sums_stride_m,
    left_stride,
    right_stride,
    FACTORS: tl.constexpr,
    AMAX_FACTOR: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    OUTPUT: tl.constexpr,
    ARCH: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLS: tl.constexpr,
):
    """What the kernels of products do last, for fp32 ``sums`` (M, N) that were made elsewhere.

    FACTORS: what ``left`` and ``right`` hold, ``"scales"``, ``"amax"`` or ``"none"``.
    """
    row0, col0 = _tile_of_program(M, N, TILE_ROWS, TILE_COLS)
    rows, cols = row0 + tl.arange(0, TILE_ROWS), col0 + tl.arange(0, TILE_COLS)
    y = _load_step(sums, rows, M, col0, N, sums_stride_m, 1, TILE_COLS)
    if FACTORS == "scales":
        y = _times_scales(y, left, right, rows, cols, M, N, left_stride, right_stride)
    if FACTORS == "amax":
        y = _times_amax(y, left, right, rows, cols, M, N, left_stride, right_stride, AMAX_FACTOR)
    _finish(y, bias, out, rows, cols, M, N, HAS_BIAS, OUTPUT, ARCH)
