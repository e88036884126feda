"""The product of two operands of one family, in fp32.

Block scales fold into the elements wherever the result is exact in bf16: power-of-two scales
(MXFP8, MXFP4, FP8 blocks with power-of-two scales) and E4M3 scales of E2M1 elements (NVFP4). The
scales of a whole tensor or row multiply the fp32 result. Only other fp32 scales of FP8 blocks don't
fold; there each block of 128 along K gives a partial product.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qrole_kernels import ops
from qrole_kernels.formats import E8M0
from qrole_kernels.operand import Operand
from qrole_kernels.reference.elements import decode_e8m0

EXPONENT_SPREAD = 48
"""Binades between the largest and the smallest used scale of an operand up to which all products of
two elements are normal fp32 numbers, so that matrix units that flush subnormals lose nothing."""
SMALLEST_VALUE = 2.0**-62
"""What elements may be where scales spread further: their products are normal just the same."""


@dataclass(frozen=True)
class Folded:
    """Elements with their block scales multiplied in.

    `values` is fp32 (R, K); 2^`exponent` was taken out of them (an int32 scalar, -127 to 127);
    `bf16_exact` says whether they are bf16 numbers, none of them or their products subnormal.
    """

    values: Tensor
    exponent: Tensor
    bf16_exact: bool


def fp8_tensor(left: Operand, right: Operand) -> Tensor:
    """The product of the codes, times the scale of the tensor or row on either side."""
    y = ops.matmul_f32(_fp8_values(left), _fp8_values(right), True)
    return y * _scale(left).view(-1, 1) * _scale(right).view(1, -1)


def fp8_block(left: Operand, right: Operand) -> Tensor:
    """Folded where the scales of both are powers of two, by partial products elsewhere."""
    left_e8m0, right_e8m0 = _as_e8m0(_scale(left)), _as_e8m0(_scale(right))
    if left_e8m0 is not None and right_e8m0 is not None:
        return _folded_product(
            _fold(left, left_e8m0, _decode_fp8_block), _fold(right, right_e8m0, _decode_fp8_block)
        )
    rows = [128 if operand.format == "fp8_block_2d" else 1 for operand in (left, right)]
    values = _fp8_values(left), _fp8_values(right)
    return ops.matmul_fp8_block(*values, _scale(left), _scale(right), *rows)


def mxfp8(left: Operand, right: Operand) -> Tensor:
    """Scales folded."""
    return _folded_product(
        _fold(left, _scale(left), _decode_mxfp8), _fold(right, _scale(right), _decode_mxfp8)
    )


def mxfp4(left: Operand, right: Operand) -> Tensor:
    """Scales folded."""
    return _folded_product(
        _fold(left, _scale(left), _decode_mxfp4), _fold(right, _scale(right), _decode_mxfp4)
    )


def nvfp4(left: Operand, right: Operand) -> Tensor:
    """Block scales folded; amax of both sides and the formats' range applied as one factor."""
    y = ops.matmul_f32(_nvfp4_values(left), _nvfp4_values(right), True)
    assert left.amax is not None
    assert right.amax is not None
    alpha = left.amax.view(-1, 1) * right.amax.view(1, -1)
    return y * (alpha * torch.full_like(alpha, 1 / (36 * left.e4m3_max * right.e4m3_max)))


PRODUCTS: dict[str, Callable[[Operand, Operand], Tensor]] = {
    "fp8_tensor": fp8_tensor,
    "fp8_block": fp8_block,
    "mxfp8": mxfp8,
    "mxfp4": mxfp4,
    "nvfp4": nvfp4,
}


def _scale(operand: Operand) -> Tensor:
    assert operand.scale is not None
    return operand.scale


def _fp8_values(operand: Operand) -> Tensor:
    one = torch.ones((), device=operand.data.device)
    return _along_memory(
        operand.data, lambda data: ops.dequantize_fp8(data, one, operand.element, torch.float32)
    )


def _along_memory(data: Tensor, decode: Callable[[Tensor], Tensor]) -> Tensor:
    """Decode elementwise in the order of memory, so that a transposed view is not copied."""
    transposed = not data.is_contiguous() and data.t().is_contiguous()
    return decode(data.t()).t() if transposed else decode(data)


def _nvfp4_values(operand: Operand) -> Tensor:
    """E2M1 values times E4M3 scales; an amax of 6 * e4m3_max makes each factor the scale itself."""
    scale = _scale(operand)
    unit = torch.full((), 6.0 * operand.e4m3_max, device=scale.device)
    values = ops.dequantize_nvfp4(operand.data, scale, unit, operand.e4m3_max, torch.float32)
    return values[:, : operand.shape[1]]


def _decode_mxfp8(operand: Operand, scale: Tensor) -> Tensor:
    data, element = operand.data, operand.element
    if not data.is_contiguous() and data.t().is_contiguous():
        columns = ops.dequantize_mxfp8(data.t(), scale.t(), element, 32, 1, torch.float32)
        return columns.t()
    return ops.dequantize_mxfp8(data, scale, element, 1, 32, torch.float32)


def _decode_mxfp4(operand: Operand, scale: Tensor) -> Tensor:
    values = ops.dequantize_mxfp4(operand.data, scale, torch.float32)
    return values[:, : operand.shape[1]]


def _decode_fp8_block(operand: Operand, scale: Tensor) -> Tensor:
    rows = 128 if operand.format == "fp8_block_2d" else 1
    decoded = decode_e8m0(scale)
    return ops.dequantize_fp8_block(operand.data, decoded, operand.element, rows, torch.float32)


def _fold(operand: Operand, scale: Tensor, decode: Callable[[Operand, Tensor], Tensor]) -> Folded:
    """Fold E8M0 scales relative to the largest one, which becomes 2^0."""
    is_number = scale != E8M0.nan_cast
    exponent = scale.int()
    used = exponent.masked_fill(~is_number, 0)
    top = used.max() if used.numel() else used.new_zeros(())
    relative = (exponent - top + E8M0.bias).clamp(min=0).masked_fill(~is_number, E8M0.nan_cast)
    values = decode(operand, relative.to(torch.uint8))
    if _is_wide(used, top, values):
        return Folded(decode(operand, scale), torch.zeros_like(top), False)
    return Folded(values, top - E8M0.bias, True)


def _is_wide(exponent: Tensor, top: Tensor, values: Tensor) -> bool:
    """Whether blocks that are not all zero have scales far below the largest."""
    if not bool((exponent < top - EXPONENT_SPREAD).any()):
        return False
    return bool(((values != 0) & (values.abs() < SMALLEST_VALUE)).any())


def _folded_product(left: Folded, right: Folded) -> Tensor:
    y = ops.matmul_f32(left.values, right.values, left.bf16_exact and right.bf16_exact)
    exponent = left.exponent + right.exponent
    # In two steps, since the sum of two exponents may be outside of fp32.
    first = exponent.clamp(-E8M0.bias, E8M0.bias)
    return y * _power_of_two(first) * _power_of_two(exponent - first)


def _power_of_two(exponent: Tensor) -> Tensor:
    return decode_e8m0((exponent + E8M0.bias).to(torch.uint8))


def _as_e8m0(scale: Tensor) -> Tensor | None:
    """Fp32 scales as E8M0 bytes, where all are powers of two in its range."""
    mantissa, exponent = scale.frexp()
    code = exponent - 1 + E8M0.bias
    exact = (mantissa == 0.5) & (code >= 0) & (code <= E8M0.max_code)
    return code.to(torch.uint8) if bool(exact.all()) else None
