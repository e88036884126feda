"""Products of quantized operands on tensor cores: y (M, N) = left (M, K) @ right (N, K).T.

MXFP8, MXFP4 and NVFP4 are multiplied by block-scaled instructions (compute capability 10.0 and
above); NVFP4 elsewhere as bf16, into which its block scales fold exactly. FP8 is multiplied as it
is (8.9 and above); where tensor cores keep fewer bits than fp32 while they accumulate, 128 places
of K at a time, each partial product being added in fp32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from qrole_kernels.cuda.launch import DTYPE_NAMES, architecture, launch
from qrole_kernels.cuda.rounding import decode_e2m1_pairs, decode_fp8, to_output
from qrole_kernels.cuda.tiles import Tile, widen
from qrole_kernels.operand import HIGH_PRECISION, PACKED, Operand
from qrole_kernels.reference.arguments import check_choice
from qrole_kernels.reference.blocks import ceil_div

TILE = Tile(128, 128)
"""Rows and columns of the result that one program computes."""
BLOCK_TILE = Tile(128, 64)
"""The same for FP8 in blocks, which needs registers for partial products and their scales too."""
BF16_TILE = Tile(128, 64)
"""The same for NVFP4 that is multiplied as bf16."""
STEP_BYTES = 128
"""Bytes of an operand's row that one step along K takes."""
BF16_STEP_BYTES = 32
"""The same for NVFP4 that is multiplied as bf16."""
NEEDED = {"fp8_tensor": 89, "fp8_block": 89, "mxfp8": 100, "mxfp4": 100, "nvfp4": 80}
"""Compute capability from which on a family has a kernel here."""
FULL_FP32 = (10, 11)
"""Major compute capabilities whose accumulators (tensor memory) are fp32 in full."""
BLOCK = {"mxfp8": 32, "mxfp4": 32, "nvfp4": 16}
"""Places along K that share a scale."""
FP8_DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}

Arguments = dict[str, Any]
Constants = dict[str, Any]


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
def block_scaled_kernel(
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
        row_amax = _load_factor(a_amax, rows, M, a_amax_stride)
        col_amax = _load_factor(b_amax, cols, N, b_amax_stride)
        total *= row_amax[:, None] * col_amax[None, :] * AMAX_FACTOR
    _finish(total, bias, out, rows, cols, M, N, HAS_BIAS, OUTPUT, ARCH)


@triton.jit
def fp8_kernel(
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
        total *= _load_factor(a_scale, rows, M, a_scale_stride_m)[:, None]
        total *= _load_factor(b_scale, cols, N, b_scale_stride_m)[None, :]
    _finish(total, bias, out, rows, cols, M, N, HAS_BIAS, OUTPUT, ARCH)


def supports(left: Operand, right: Operand) -> bool:
    """Whether the device of two operands of one family has tensor cores for them."""
    if left.family == HIGH_PRECISION:
        return False
    arch = architecture(left.data.device)
    return arch == 0 or arch >= NEEDED[left.family]


def gemm(
    left: Operand, right: Operand, out_dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:
    """The product of two operands of one family that `supports` accepts, plus bias (N,).

    Returns:
        (M, N) of `out_dtype`: accumulated in fp32, the bias included, and rounded once.
    """
    check_choice("out_dtype", out_dtype, tuple(DTYPE_NAMES))
    m, n = left.shape[0], right.shape[0]
    out = torch.empty((m, n), dtype=out_dtype, device=left.data.device)
    # The kernel does not read what stands in for a missing bias.
    addend = out if bias is None else bias.contiguous()
    arguments = {"out": out, "bias": addend, "M": m, "N": n}
    constants = {
        "HAS_BIAS": bias is not None,
        "OUTPUT": DTYPE_NAMES[out_dtype],
        "ARCH": architecture(out.device),
    }
    if left.family.startswith("fp8"):
        _fp8(left, right, arguments, constants)
    else:
        _block_scaled(left, right, arguments, constants)
    return out


def _fp8(left: Operand, right: Operand, arguments: Arguments, constants: Constants) -> None:
    in_blocks = left.family == "fp8_block"
    for side, operand in (("a", left), ("b", right)):
        assert operand.scale is not None
        scale = operand.scale if in_blocks else _column(operand.scale)
        arguments |= _matrix(side, operand.data.view(FP8_DTYPES[operand.element]))
        arguments |= _matrix(f"{side}_scale", scale)
        rows = 128 if operand.format == "fp8_block_2d" else 1
        constants[f"{side.upper()}_BLOCK"] = rows if in_blocks else 0
    arguments["K"] = left.shape[1]
    constants["STEP"] = STEP_BYTES
    constants["IN_PLACE"] = not in_blocks and constants["ARCH"] // 10 in FULL_FP32
    _launch(fp8_kernel, arguments, constants, BLOCK_TILE if in_blocks else TILE)


def _block_scaled(
    left: Operand, right: Operand, arguments: Arguments, constants: Constants
) -> None:
    is_packed, is_nvfp4 = left.format in PACKED, left.format == "nvfp4"
    is_native = _multiplies_scaled(is_nvfp4, constants["ARCH"])
    for side, operand in (("a", left), ("b", right)):
        assert operand.scale is not None
        data = operand.data if is_packed else operand.data.view(FP8_DTYPES[operand.element])
        typed = is_nvfp4 and is_native
        scale = operand.scale.view(torch.float8_e4m3fn) if typed else operand.scale
        # The kernel does not read what stands in for a missing amax.
        amax = _column(scale if operand.amax is None else operand.amax)
        arguments |= _matrix(side, data) | _matrix(f"{side}_scale", scale)
        arguments |= {f"{side}_amax": amax, f"{side}_amax_stride": amax.stride(0)}
        constants[f"{side.upper()}_ELEMENT"] = "e2m1" if is_packed else operand.element
    arguments |= {
        "width": left.data.shape[1],
        "blocks": ceil_div(left.shape[1], BLOCK[left.format]),
    }
    step = STEP_BYTES if is_native else BF16_STEP_BYTES
    constants |= {
        "STEP": step,
        "STEP_BLOCKS": step * (2 if is_packed else 1) // BLOCK[left.format],
        "NATIVE": is_native,
        "HAS_AMAX": is_nvfp4,
        "AMAX_FACTOR": 1 / (36 * left.e4m3_max * right.e4m3_max),
    }
    _launch(block_scaled_kernel, arguments, constants, TILE if is_native else BF16_TILE)


def _multiplies_scaled(is_nvfp4: bool, arch: int) -> bool:
    # The interpreter takes every block scale for a power of two, which NVFP4's are not.
    return arch >= 100 or (arch == 0 and not is_nvfp4)


def _matrix(name: str, x: Tensor) -> Arguments:
    return {name: x, f"{name}_stride_m": x.stride(0), f"{name}_stride_k": x.stride(1)}


def _column(values: Tensor) -> Tensor:
    """One value per row as (R, 1); one for all rows with a stride of 0."""
    column = values.reshape(-1, 1)
    return column.as_strided((1, 1), (0, 0)) if column.numel() == 1 else column


def _launch(kernel: Any, arguments: Arguments, constants: Constants, tile: Tile) -> None:
    launch(
        kernel,
        tile.programs(*arguments["out"].shape),
        arguments,
        constants | {"TILE_M": tile.rows, "TILE_N": tile.cols},
        # The registers of eight warps hold the total of a tile beside a partial product.
        num_warps=8,
    )
