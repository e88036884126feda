"""Every format as a pair of functions, for tests that hold for all of them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qrole_kernels import formats, reference
from qrole_kernels.reference.blocks import expand_blocks
from qrole_kernels.reference.elements import decode_e8m0, decode_fp8, unpack_nibbles

Quantized = tuple[Tensor, Tensor, Tensor]
"""Data, scales, amax of the tensor."""


@dataclass(frozen=True)
class Codec:
    """One format with its options.

    `quantize` maps a matrix (M, K) to data, scales and amax; `decode` maps these and (M, K) back to
    fp32; `factors` gives what each element is multiplied by when decoded, fp64 (M, K).
    """

    name: str
    element: formats.ElementFormat
    block: tuple[int, int] | None
    quantize: Callable[[Tensor], Quantized]
    decode: Callable[[Quantized, torch.Size], Tensor]
    factors: Callable[[Quantized, torch.Size], Tensor]

    def codes(self, quantized: Quantized, shape: torch.Size) -> Tensor:
        """One code per element, uint8 (M, K)."""
        data = quantized[0]
        return data if self.element.bits == 8 else unpack_nibbles(data)[:, : shape[1]]

    @property
    def sign_bit(self) -> int:
        return 1 << (self.element.bits - 1)


def _fp8(element: str, power_of_two: bool) -> Codec:
    def quantize(x: Tensor) -> Quantized:
        data, _, scale_inv, amax = reference.quantize_fp8_current(x, element, power_of_two)
        return data, scale_inv, amax

    return Codec(
        f"fp8_{element}{'_pow2' if power_of_two else ''}",
        formats.FP8_FORMATS[element],
        None,
        quantize,
        lambda q, shape: reference.dequantize_fp8(q[0], q[1], element, torch.float32),
        lambda q, shape: q[1].double().expand(shape),
    )


def _fp8_rows(element: str) -> Codec:
    return Codec(
        f"fp8_rows_{element}",
        formats.FP8_FORMATS[element],
        (1, 1 << 20),
        lambda x: (*reference.quantize_fp8_rows(x, element), reference.amax(x)),
        lambda q, shape: reference.dequantize_fp8_rows(q[0], q[1], element, torch.float32),
        lambda q, shape: q[1].double().expand(shape),
    )


def _fp8_block(element: str, rows: int, power_of_two: bool) -> Codec:
    return Codec(
        f"fp8_{rows}x128_{element}_{'pow2' if power_of_two else 'fp32'}",
        formats.FP8_FORMATS[element],
        (rows, 128),
        lambda x: (
            *reference.quantize_fp8_block(x, element, rows, power_of_two),
            reference.amax(x),
        ),
        lambda q, shape: reference.dequantize_fp8_block(q[0], q[1], element, rows, torch.float32),
        lambda q, shape: expand_blocks(q[1].double(), rows, 128, shape),
    )


def _mxfp8(element: str, block: tuple[int, int]) -> Codec:
    return Codec(
        f"mxfp8_{element}_{block[0]}x{block[1]}",
        formats.FP8_FORMATS[element],
        block,
        lambda x: (*reference.quantize_mxfp8(x, element, *block), reference.amax(x)),
        lambda q, shape: reference.dequantize_mxfp8(q[0], q[1], element, *block, torch.float32),
        lambda q, shape: expand_blocks(decode_e8m0(q[1]).double(), *block, shape),
    )


def _nvfp4(rows: int, e4m3_max: int = 448, error: str = "") -> Codec:
    def quantize(x: Tensor) -> Quantized:
        amax = reference.amax(x)
        return *reference.quantize_nvfp4(x, amax, rows, e4m3_max, error), amax

    def decode(q: Quantized, shape: torch.Size) -> Tensor:
        return reference.dequantize_nvfp4(*q, e4m3_max, torch.float32)[:, : shape[1]]

    def factors(q: Quantized, shape: torch.Size) -> Tensor:
        tensor_factor = q[2].double() / (6 * e4m3_max)
        return expand_blocks(decode_fp8(q[1], "e4m3").double() * tensor_factor, 1, 16, shape)

    name = f"nvfp4_{rows}x16{f'_4over6_{error}{e4m3_max}' if error else ''}"
    return Codec(name, formats.E2M1, (rows, 16), quantize, decode, factors)


def _mxfp4(rule: str) -> Codec:
    return Codec(
        f"mxfp4_{rule}",
        formats.E2M1,
        (1, 32),
        lambda x: (*reference.quantize_mxfp4(x, rule), reference.amax(x)),
        lambda q, shape: reference.dequantize_mxfp4(q[0], q[1], torch.float32)[:, : shape[1]],
        lambda q, shape: expand_blocks(decode_e8m0(q[1]).double(), 1, 32, shape),
    )


CODECS = (
    *(_fp8(element, pow2) for element in ("e4m3", "e5m2") for pow2 in (False, True)),
    *(_fp8_rows(element) for element in ("e4m3", "e5m2")),
    *(_fp8_block("e4m3", rows, pow2) for rows in (1, 128) for pow2 in (False, True)),
    _fp8_block("e5m2", 1, True),
    *(_mxfp8("e4m3", block) for block in ((1, 32), (32, 1), (32, 32))),
    _mxfp8("e5m2", (1, 32)),
    _nvfp4(1),
    _nvfp4(16),
    _nvfp4(1, 256, "mae"),
    _nvfp4(16, 448, "mse"),
    *(_mxfp4(rule) for rule in ("rceil", "floor", "even")),
)
