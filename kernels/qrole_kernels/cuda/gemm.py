"""Products of quantized operands on tensor cores: y (M, N) = left (M, K) @ right (N, K).T.

MXFP8, MXFP4 and NVFP4 are multiplied by block-scaled instructions (compute capability 10.0 and
above); NVFP4 elsewhere as bf16, into which its block scales fold exactly. FP8 is multiplied as it
is (8.9 and above); where tensor cores keep fewer bits than fp32 while they accumulate, 128 places
of K at a time, each partial product being added in fp32.
"""

from typing import Any

import torch
from torch import Tensor

from qrole_kernels.cuda.gemm_kernels import block_scaled_gemm_kernel, fp8_gemm_kernel
from qrole_kernels.cuda.launch import DTYPE_NAMES, architecture, launch
from qrole_kernels.cuda.tiles import Tile
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
    _launch(fp8_gemm_kernel, arguments, constants, BLOCK_TILE if in_blocks else TILE)


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
    _launch(block_scaled_gemm_kernel, arguments, constants, TILE if is_native else BF16_TILE)


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
