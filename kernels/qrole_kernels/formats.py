"""The number formats as tables. Free of torch, so that tools which only read headers stay fast.

Element casts everywhere in this package round to nearest even and saturate: what lies beyond `max`,
infinities included, becomes +-`max`; a NaN becomes `nan_cast` (sign dropped); a negative zero keeps
its sign.
"""

import math
from dataclasses import dataclass

from qrole_kernels.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class ElementFormat:
    """A number format of at most 8 bits.

    Invariants: `max` is the value of `max_code`; codes fit `bits`; an unsigned format has no
    mantissa (E8M0).
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    max: float
    max_code: int
    nan_cast: int
    """Code that a NaN is cast to: a NaN where the format has one, else the largest value."""
    inf_code: int | None = None
    nan_codes: tuple[int, ...] = ()
    """Codes (sign bit clear) that decode to NaN."""
    signed: bool = True

    def __post_init__(self) -> None:
        """Check the invariants."""
        assert 0 <= self.max_code < 1 << self.bits
        assert 0 <= self.nan_cast < 1 << self.bits
        assert self.value(self.max_code) == self.max
        assert self.signed or self.mantissa_bits == 0

    @property
    def bits(self) -> int:
        """Width of a code."""
        return int(self.signed) + self.exponent_bits + self.mantissa_bits

    @property
    def min_normal(self) -> float:
        """Smallest positive normal value."""
        return 2.0 ** ((1 if self.signed else 0) - self.bias)

    @property
    def min_subnormal(self) -> float:
        """Smallest positive value."""
        return self.min_normal * 2.0**-self.mantissa_bits

    def value(self, code: int) -> float:
        """Decode one code."""
        sign_shift = self.exponent_bits + self.mantissa_bits
        magnitude = code & ((1 << sign_shift) - 1)
        sign = -1.0 if code >> sign_shift & 1 else 1.0
        if magnitude in self.nan_codes:
            return math.nan
        if magnitude == self.inf_code:
            return sign * math.inf
        if not self.signed:
            return 2.0 ** (magnitude - self.bias)
        exponent, mantissa = divmod(magnitude, 1 << self.mantissa_bits)
        if exponent == 0:
            return sign * mantissa * self.min_subnormal
        return sign * (1 + mantissa / (1 << self.mantissa_bits)) * 2.0 ** (exponent - self.bias)


E4M3 = ElementFormat("e4m3", 4, 3, 7, 448.0, 0x7E, nan_cast=0x7F, nan_codes=(0x7F,))
E5M2 = ElementFormat(
    "e5m2", 5, 2, 15, 57344.0, 0x7B, nan_cast=0x7F, inf_code=0x7C, nan_codes=(0x7D, 0x7E, 0x7F)
)
E2M1 = ElementFormat("e2m1", 2, 1, 1, 6.0, 0x7, nan_cast=0x7)
E8M0 = ElementFormat(
    "e8m0", 8, 0, 127, 2.0**127, 0xFE, nan_cast=0xFF, nan_codes=(0xFF,), signed=False
)

ELEMENT_FORMATS = {f.name: f for f in (E4M3, E5M2, E2M1, E8M0)}
FP8_FORMATS = {f.name: f for f in (E4M3, E5M2)}


def fp8_format(element: str) -> ElementFormat:
    """Look up an FP8 element format by name.

    Raises:
        ArgumentError: `element` names no FP8 format.
    """
    try:
        return FP8_FORMATS[element]
    except KeyError:
        raise ArgumentError(
            f"element={element!r}", f"one of {sorted(FP8_FORMATS)}", "Pass one of these names."
        ) from None


@dataclass(frozen=True, slots=True)
class ScaledFormat:
    """How a matrix is stored whose elements share scales.

    `block` is the (rows, columns) extent that one scale covers; `None` along a dimension means all
    of it. `scale_format` is "f32" or the name of an element format. Square blocks of MXFP8 and
    NVFP4 are stored as their row-wise form, the scale repeated; NVFP4 has an fp32 amax per tensor
    or row on top.
    """

    name: str
    scale_format: str
    block: tuple[int | None, int | None]


SCALED_FORMATS = {
    f.name: f
    for f in (
        ScaledFormat("fp8_tensor", "f32", (None, None)),
        ScaledFormat("fp8_rows", "f32", (1, None)),
        ScaledFormat("fp8_block_1d", "f32", (1, 128)),
        ScaledFormat("fp8_block_2d", "f32", (128, 128)),
        ScaledFormat("mxfp8", "e8m0", (1, 32)),
        ScaledFormat("nvfp4", "e4m3", (1, 16)),
        ScaledFormat("mxfp4", "e8m0", (1, 32)),
    )
}
