"""Products of quantized operands, emulated with fp32 accumulation.

y (M, N) = left (M, K) @ right (N, K).T
"""

import torch
from torch import Tensor
from torch.nn.functional import linear

from qrole_kernels import cuda_backends, ops
from qrole_kernels.cuda_backends import Backend
from qrole_kernels.errors import ArgumentError, PairingError
from qrole_kernels.operand import HIGH_PRECISION, Operand
from qrole_kernels.products import product_of

__all__ = ["Operand", "check_pairing", "gemm"]

ROWS_PER_TILE = 2048
"""Rows of the right operand that are decoded at a time, which bounds the memory that it takes."""


def gemm(
    left: Operand, right: Operand, out_dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:
    """The product left (M, K) @ right (N, K).T, plus bias (N,): (M, N) of `out_dtype`.

    Accumulated in fp32; the bias is added before the one rounding to `out_dtype`. Two operands in
    high precision are multiplied as `torch.nn.functional.linear` does.

    Raises:
        PairingError: The operands' formats have no common product.
        ArgumentError: They disagree about K.
    """
    check_pairing(left, right)
    if left.family == HIGH_PRECISION:
        return linear(left.data, right.data, bias).to(out_dtype)
    return _op(*left.pack(), *right.pack(), out_dtype, bias)


def quantized_gemm(
    left: list[Tensor],
    left_options: str,
    right: list[Tensor],
    right_options: str,
    out_dtype: torch.dtype,
    bias: Tensor | None,
) -> Tensor:
    """The op behind `gemm`, on packed operands: the emulation."""
    x, w = Operand.unpack(left, left_options), Operand.unpack(right, right_options)
    columns = w.shape[0]
    y = torch.empty(x.shape[0], columns, dtype=out_dtype, device=x.data.device)
    product = product_of(x, w)
    prepared = product.prepare(x)
    for start in range(0, columns, ROWS_PER_TILE):
        tile = slice(start, min(start + ROWS_PER_TILE, columns))
        right_tile = product.prepare(w.rows(tile.start, tile.stop))
        sums, factors = product.multiply(prepared, right_tile)
        _finish(sums, factors, None if bias is None else bias[tile].float(), y[:, tile])
    return y


def _finish(sums: Tensor, factors: list[Tensor], bias: Tensor | None, out: Tensor) -> None:
    """Multiplies, adds the bias, and rounds to the dtype of `out`: as few passes as there can be.

    Every step is an fp32 operation, the last one included, whose result alone is rounded.
    """
    for factor in factors if bias is not None else factors[:-1]:
        sums.mul_(factor)
    if bias is not None:
        torch.add(sums, bias, out=out)
    elif factors:
        torch.mul(sums, factors[-1], out=out)
    else:
        out.copy_(sums)


def _on_cuda(
    left: list[Tensor],
    left_options: str,
    right: list[Tensor],
    right_options: str,
    out_dtype: torch.dtype,
    bias: Tensor | None,
) -> Tensor:
    """By what `cuda_backends` puts first for these formats on this device."""
    from qrole_kernels.cuda.launch import architecture

    x, w = Operand.unpack(left, left_options), Operand.unpack(right, right_options)
    arch = architecture(x.data.device)
    backend = cuda_backends.backends(x, w, arch, cuda_backends.scaled_mm_cuda())[0]
    match backend:
        case Backend.TORCH:
            from qrole_kernels.cuda import torch_gemm

            return torch_gemm.gemm(x, w, out_dtype, bias)
        case Backend.TRITON:
            from qrole_kernels.cuda import triton_gemm

            return triton_gemm.gemm(x, w, out_dtype, bias)
        case Backend.EMULATION:
            return quantized_gemm(left, left_options, right, right_options, out_dtype, bias)


def _fake(
    left: list[Tensor],
    left_options: str,
    right: list[Tensor],
    right_options: str,
    out_dtype: torch.dtype,
    bias: Tensor | None,
) -> Tensor:
    return left[0].new_empty((left[0].shape[0], right[0].shape[0]), dtype=out_dtype)


_op = ops.declare(quantized_gemm, _fake, cuda=_on_cuda)


def check_pairing(left: Operand, right: Operand) -> None:
    """Check that two operands have a product.

    Raises:
        PairingError: Their formats have none.
        ArgumentError: They disagree about K.
    """
    if left.shape[1] != right.shape[1]:
        raise ArgumentError(
            f"operands {left.shape} and {right.shape}",
            "matrices (M, K) and (N, K) with one K",
            "Pass both with the summed dimension last.",
        )
    if left.family != right.family:
        raise PairingError(
            f"{left.format} times {right.format}",
            "two operands of one family",
            "Give both operands of this GEMM the same quantizer, or leave both unquantized.",
        )
    if left.format == right.format == "fp8_block_2d":
        raise PairingError(
            "128x128 blocks times 128x128 blocks",
            "1x128 blocks for at least one operand",
            "Quantize activations and gradients in 1x128 blocks.",
        )
    if left.format != HIGH_PRECISION and left.element == right.element == "e5m2":
        raise PairingError(
            "E5M2 times E5M2",
            "E4M3 for at least one operand",
            "Keep inputs and weights in E4M3; E5M2 is for gradients.",
        )
    if left.family == HIGH_PRECISION and left.data.dtype != right.data.dtype:
        raise PairingError(
            f"{left.data.dtype} times {right.data.dtype}",
            "one dtype",
            "Convert one of the unquantized operands.",
        )
