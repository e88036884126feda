"""Products of quantized operands by triton's kernels: y (M, N) = left (M, K) @ right (N, K).T.

MXFP8, MXFP4 and NVFP4 are multiplied by block-scaled instructions (compute capability 10.0 and
above); NVFP4 elsewhere as bf16, into which its block scales fold exactly. FP8 is multiplied as it
is (8.9 and above); where tensor cores keep fewer bits than fp32 while they accumulate, 128 places
of K at a time, each partial product being added in fp32.
"""

from typing import Any

import torch
from torch import Tensor

from qrole_kernels.cuda.finish import amax_factor, column, ending
from qrole_kernels.cuda.gemm_kernels import block_scaled_gemm_kernel, fp8_gemm_kernel
from qrole_kernels.cuda.launch import launch
from qrole_kernels.cuda.operands import ALIGNMENT, FP8_DTYPES, aligned
from qrole_kernels.cuda.tiles import Tile, column_major, has_aligned_rows
from qrole_kernels.operand import PACKED, Operand
from qrole_kernels.reference.blocks import ceil_div

TILE = Tile(128, 128)
"""Rows and columns of the result that one program computes."""
SMALL_TILE = Tile(128, 64)
"""The same where registers are needed for more: FP8 in blocks has partial products and their
scales, transposed FP8 is turned around in them, NVFP4 becomes bf16 there."""
STEP_BYTES = 128
"""Bytes of an operand's row that one step along K takes."""
BF16_STEP_BYTES = 32
"""The same for NVFP4 that is multiplied as bf16."""
FULL_FP32 = (10, 11)
"""Major compute capabilities whose accumulators (tensor memory) are fp32 in full."""
BLOCK = {"mxfp8": 32, "mxfp4": 32, "nvfp4": 16}
"""Places along K that share a scale."""

Arguments = dict[str, Any]
Constants = dict[str, Any]


def gemm(
    left: Operand, right: Operand, out_dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:
    """The product of two operands of one family that triton multiplies, plus bias (N,).

    Returns:
        (M, N) of `out_dtype`: accumulated in fp32, the bias included, and rounded once.
    """
    arguments, constants = ending(left, right, out_dtype, bias)
    if left.family.startswith("fp8"):
        _fp8(left, right, arguments, constants)
    else:
        _block_scaled(left, right, arguments, constants)
    result: Tensor = arguments["out"]
    return result


def _fp8(left: Operand, right: Operand, arguments: Arguments, constants: Constants) -> None:
    in_blocks = left.family == "fp8_block"
    for side, operand in (("a", left), ("b", right)):
        assert operand.scale is not None
        scale = operand.scale if in_blocks else column(operand.scale)
        data = _aligned(operand.data).view(FP8_DTYPES[operand.element])
        arguments |= _matrix(side, data) | _matrix(f"{side}_scale", scale) | {"K": data.shape[1]}
        rows = 128 if operand.format == "fp8_block_2d" else 1
        constants[f"{side.upper()}_BLOCK"] = rows if in_blocks else 0
    constants["STEP"] = STEP_BYTES
    constants["IN_PLACE"] = not in_blocks and constants["ARCH"] // 10 in FULL_FP32
    is_crossed = not constants["IN_PLACE"] and any(column_major(x.data) for x in (left, right))
    _launch(fp8_gemm_kernel, arguments, constants, SMALL_TILE if in_blocks or is_crossed else TILE)


def _block_scaled(
    left: Operand, right: Operand, arguments: Arguments, constants: Constants
) -> None:
    is_packed, is_nvfp4 = left.format in PACKED, left.format == "nvfp4"
    is_native = _multiplies_scaled(is_nvfp4, constants["ARCH"])
    for side, operand in (("a", left), ("b", right)):
        assert operand.scale is not None
        codes = _aligned(operand.data)
        data = codes if is_packed else codes.view(FP8_DTYPES[operand.element])
        typed = is_nvfp4 and is_native
        scale = operand.scale.view(torch.float8_e4m3fn) if typed else operand.scale
        # The kernel does not read what stands in for a missing amax.
        amax = scale if operand.amax is None else column(operand.amax)
        arguments |= _matrix(side, data) | _matrix(f"{side}_scale", scale)
        arguments |= {
            "width": data.shape[1],
            f"{side}_amax": amax,
            f"{side}_amax_stride": amax.stride(0),
        }
        constants[f"{side.upper()}_ELEMENT"] = "e2m1" if is_packed else operand.element
    arguments["blocks"] = ceil_div(left.shape[1], BLOCK[left.format])
    step = STEP_BYTES if is_native else BF16_STEP_BYTES
    constants |= {
        "STEP": step,
        "STEP_BLOCKS": step * (2 if is_packed else 1) // BLOCK[left.format],
        "NATIVE": is_native,
        "HAS_AMAX": is_nvfp4,
        "AMAX_FACTOR": amax_factor(left, right),
    }
    _launch(block_scaled_gemm_kernel, arguments, constants, TILE if is_native else SMALL_TILE)


def _multiplies_scaled(is_nvfp4: bool, arch: int) -> bool:
    # The interpreter takes every block scale for a power of two, which NVFP4's are not.
    return arch >= 100 or (arch == 0 and not is_nvfp4)


def _aligned(x: Tensor) -> Tensor:
    """A matrix of bytes as it is where it can be loaded 16 bytes at a time, else so copied."""
    if x.shape[1] % ALIGNMENT == 0 and (has_aligned_rows(x) or has_aligned_rows(x.t())):
        return x
    return aligned(x)


def _matrix(name: str, x: Tensor) -> Arguments:
    return {name: x, f"{name}_stride_m": x.stride(0), f"{name}_stride_k": x.stride(1)}


def _launch(kernel: Any, arguments: Arguments, constants: Constants, tile: Tile) -> None:
    launch(
        kernel,
        tile.programs(*arguments["out"].shape),
        arguments,
        constants | {"TILE_M": tile.rows, "TILE_N": tile.cols},
        # The registers of eight warps hold the total of a tile beside a partial product.
        num_warps=8,
    )
