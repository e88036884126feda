"""How two operands of one family are multiplied: decoding first, then an fp32 product.

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
class Prepared:
    """An operand that is decoded as far as its product wants.

    Attributes:
        operand: What it was.
        values: fp32 (R, K), block scales multiplied in where they fold.
        exponent: 2^exponent was taken out of the values: an int32 scalar, -127 to 127.
        bf16_exact: The values are bf16 numbers; none of them nor of their products is subnormal.
    """

    operand: Operand
    values: Tensor
    exponent: Tensor | None = None
    bf16_exact: bool = True


@dataclass(frozen=True)
class Product:
    """How operands are decoded, and how two decoded ones (M, K) and (N, K) are multiplied.

    Attributes:
        prepare: Decodes an operand.
        multiply: The fp32 sums (M, N), and the factors that they are multiplied with in turn.
    """

    prepare: Callable[[Operand], Prepared]
    multiply: Callable[[Prepared, Prepared], tuple[Tensor, list[Tensor]]]


def product_of(left: Operand, right: Operand) -> Product:
    """The way in which two operands of one family are multiplied."""
    if left.family != "fp8_block":
        return _PRODUCTS[left.family]
    is_folding = _as_e8m0(left) is not None and _as_e8m0(right) is not None
    return _POWER_OF_TWO_BLOCKS if is_folding else _FP32_BLOCKS


def _scale(operand: Operand) -> Tensor:
    assert operand.scale is not None
    return operand.scale


def _amax(operand: Operand) -> Tensor:
    assert operand.amax is not None
    return operand.amax


def _block_rows(operand: Operand) -> int:
    return 128 if operand.format == "fp8_block_2d" else 1


def _is_transposed(data: Tensor) -> bool:
    return not data.is_contiguous() and data.t().is_contiguous()


def _prepare_fp8(operand: Operand) -> Prepared:
    """The elements alone; transposed ones in the order of memory."""
    one = torch.ones((), device=operand.data.device)
    data = operand.data.t() if _is_transposed(operand.data) else operand.data
    values = ops.dequantize_fp8(data, one, operand.element, torch.float32)
    return Prepared(operand, values if data is operand.data else values.t())


def _multiply_scaled(left: Prepared, right: Prepared) -> tuple[Tensor, list[Tensor]]:
    """One scale per tensor or row on either side."""
    sums = ops.matmul_f32(left.values, right.values, True)
    return sums, [_scale(left.operand).view(-1, 1), _scale(right.operand).view(1, -1)]


def _multiply_blocks(left: Prepared, right: Prepared) -> tuple[Tensor, list[Tensor]]:
    """Partial products, scaled and added up."""
    scales = _scale(left.operand), _scale(right.operand)
    rows = _block_rows(left.operand), _block_rows(right.operand)
    return ops.matmul_fp8_block(left.values, right.values, *scales, *rows), []


def _prepare_nvfp4(operand: Operand) -> Prepared:
    """E2M1 values times E4M3 scales; an amax of 6 * e4m3_max makes each factor the scale itself."""
    scale = _scale(operand)
    unit = torch.full((), 6.0 * operand.e4m3_max, device=scale.device)
    values = ops.dequantize_nvfp4(operand.data, scale, unit, operand.e4m3_max, torch.float32)
    return Prepared(operand, values[:, : operand.shape[1]])


def _multiply_nvfp4(left: Prepared, right: Prepared) -> tuple[Tensor, list[Tensor]]:
    """Amax of both sides and the range of the formats are one factor of the result."""
    sums = ops.matmul_f32(left.values, right.values, True)
    amax = _amax(left.operand).view(-1, 1) * _amax(right.operand).view(1, -1)
    full = 36 * left.operand.e4m3_max * right.operand.e4m3_max
    return sums, [amax * torch.full_like(amax, 1 / full)]


def _decode_mxfp8(operand: Operand, scale: Tensor) -> Tensor:
    data, element = operand.data, operand.element
    if _is_transposed(data):
        return ops.dequantize_mxfp8(data.t(), scale.t(), element, 32, 1, torch.float32).t()
    return ops.dequantize_mxfp8(data, scale, element, 1, 32, torch.float32)


def _decode_mxfp4(operand: Operand, scale: Tensor) -> Tensor:
    values = ops.dequantize_mxfp4(operand.data, scale, torch.float32)
    return values[:, : operand.shape[1]]


def _decode_fp8_block(operand: Operand, scale: Tensor) -> Tensor:
    factor, rows = decode_e8m0(scale), _block_rows(operand)
    return ops.dequantize_fp8_block(operand.data, factor, operand.element, rows, torch.float32)


def _prepare_mxfp8(operand: Operand) -> Prepared:
    return _fold(operand, _scale(operand), _decode_mxfp8)


def _prepare_mxfp4(operand: Operand) -> Prepared:
    return _fold(operand, _scale(operand), _decode_mxfp4)


def _prepare_fp8_block(operand: Operand) -> Prepared:
    scale = _as_e8m0(operand)
    assert scale is not None
    return _fold(operand, scale, _decode_fp8_block)


def _as_e8m0(operand: Operand) -> Tensor | None:
    """Fp32 scales as E8M0 bytes, where all are powers of two in its range."""
    mantissa, exponent = _scale(operand).frexp()
    code = exponent - 1 + E8M0.bias
    exact = (mantissa == 0.5) & (code >= 0) & (code <= E8M0.max_code)
    return code.to(torch.uint8) if bool(exact.all()) else None


def _fold(operand: Operand, scale: Tensor, decode: Callable[[Operand, Tensor], Tensor]) -> Prepared:
    """Fold E8M0 scales relative to the largest one, which becomes 2^0."""
    is_number = scale != E8M0.nan_cast
    code = scale.int()
    used = code.masked_fill(~is_number, 0)
    top = used.max() if used.numel() else used.new_zeros(())
    relative = (code - top + E8M0.bias).clamp(min=0).masked_fill(~is_number, E8M0.nan_cast)
    values = decode(operand, relative.to(torch.uint8))
    if _is_wide(used, top, values):
        return Prepared(operand, decode(operand, scale), torch.zeros_like(top), False)
    return Prepared(operand, values, top - E8M0.bias)


def _is_wide(code: Tensor, top: Tensor, values: Tensor) -> bool:
    """Whether blocks that are not all zero have scales far below the largest."""
    if not bool((code < top - EXPONENT_SPREAD).any()):
        return False
    return bool(((values != 0) & (values.abs() < SMALLEST_VALUE)).any())


def _multiply_folded(left: Prepared, right: Prepared) -> tuple[Tensor, list[Tensor]]:
    """The powers of two that were taken out come back."""
    assert left.exponent is not None
    assert right.exponent is not None
    is_exact = left.bf16_exact and right.bf16_exact
    sums = ops.matmul_f32(left.values, right.values, is_exact)
    exponent = left.exponent + right.exponent
    first = exponent.clamp(-E8M0.bias, E8M0.bias)
    # In two steps where the sum of two exponents is outside of fp32.
    parts = [first] if bool(exponent == first) else [first, exponent - first]
    return sums, [_power_of_two(part) for part in parts]


def _power_of_two(exponent: Tensor) -> Tensor:
    return decode_e8m0((exponent + E8M0.bias).to(torch.uint8))


_POWER_OF_TWO_BLOCKS = Product(_prepare_fp8_block, _multiply_folded)
_FP32_BLOCKS = Product(_prepare_fp8, _multiply_blocks)
_PRODUCTS = {
    "fp8_tensor": Product(_prepare_fp8, _multiply_scaled),
    "mxfp8": Product(_prepare_mxfp8, _multiply_folded),
    "mxfp4": Product(_prepare_mxfp4, _multiply_folded),
    "nvfp4": Product(_prepare_nvfp4, _multiply_nvfp4),
}
