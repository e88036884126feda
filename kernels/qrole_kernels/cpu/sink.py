"""Decoding of element codes, and high-precision output 32 neighbouring elements at a time."""

from __future__ import annotations

from qrole_kernels.cpu.rounding import round_code
from qrole_kernels.cpu.simd import I8, I16, I32, Pointer, Value, lanes, minimum, select
from qrole_kernels.cpu.source import F32_INF, VECTOR
from qrole_kernels.formats import E2M1, ElementFormat

_INTERLEAVED = [i // 2 + 16 * (i % 2) for i in range(32)]
_F32_NAN = 0x7FC00000


class Sink:
    """How values of one dtype are written; one rounding from fp32, NaN in its plain quiet form."""

    nbytes: int

    @property
    def vector_nbytes(self) -> int:
        """Bytes of 32 elements."""
        return VECTOR * self.nbytes

    def store(self, address: Pointer, even: Value, odd: Value) -> None:
        """Writes 32 elements, given as the even and the odd ones (16 x fp32 each)."""
        raise NotImplementedError


class _F32(Sink):
    nbytes = 4

    def store(self, address: Pointer, even: Value, odd: Value) -> None:
        address.store(even.take(_INTERLEAVED[:16], odd))
        address.at(64).store(even.take(_INTERLEAVED[16:], odd))


class _Bf16(Sink):
    nbytes = 2

    def store(self, address: Pointer, even: Value, odd: Value) -> None:
        low = round_bf16(even) >> 16
        address.store(low | (round_bf16(odd) & 0xFFFF0000))


def round_bf16(value: Value) -> Value:
    """bf16 in the high half of each 32-bit lane, nearest even; the low half is noise."""
    bits = value.bits()
    return bits + ((bits >> 16) & 1) + 0x7FFF


class _F16(Sink):
    nbytes = 2

    def store(self, address: Pointer, even: Value, odd: Value) -> None:
        address.store(_f16_bits(even) | (_f16_bits(odd) << 16))


def _f16_bits(value: Value) -> Value:
    bits = value.bits()
    magnitude = bits & 0x7FFFFFFF
    # 2^16 rounds to the code of infinity, and so does everything from 65520 on.
    code = round_code(minimum(magnitude.as_f32(), 2.0**16), 10, 15) & 0x7FFF
    code = select(magnitude > F32_INF, 0x7E00, code)
    return code | ((bits >> 16) & 0x8000)


SINKS: dict[str, Sink] = {"f32": _F32(), "bf16": _Bf16(), "f16": _F16()}


def byte_pair(address: Pointer) -> tuple[Value, Value]:
    """32 bytes in 32-bit lanes, the even and the odd ones."""
    words = address.load(lanes(I16, 16)).widen(I32)
    return words & 0xFF, words >> 8


def decode_fp8_pair(address: Pointer, form: ElementFormat) -> tuple[Value, Value]:
    """The values of 32 codes, the even and the odd ones."""
    even, odd = byte_pair(address)
    return decode(even, form), decode(odd, form)


def decode_fp4_pair(address: Pointer) -> tuple[Value, Value]:
    """The values of 32 packed codes (16 bytes), the even and the odd ones."""
    codes = address.load(lanes(I8, 16)).widen(I32)
    return decode(codes & 0xF, E2M1), decode(codes >> 4, E2M1)


def decode(codes: Value, form: ElementFormat) -> Value:
    """The fp32 values of codes that lie alone in 32-bit lanes."""
    sign_bit = form.bits - 1
    magnitude = codes & ((1 << sign_bit) - 1)
    # Read as normal numbers one exponent too low; a code without exponent is then twice its
    # distance from the smallest normal number, and the others keep what they are.
    bits = (magnitude << (23 - form.mantissa_bits)) + ((127 - form.bias) << 23)
    value = bits.as_f32()
    value = value + minimum(value - form.min_normal, 0.0)
    special = [code for code in form.nan_codes if code != form.inf_code]
    if special:
        value = select(magnitude >= min(special), value.like(float("nan")), value)
    if form.inf_code is not None:
        value = select(magnitude.equals(form.inf_code), value.like(float("inf")), value)
    sign = (codes << (31 - sign_bit)) & 0x80000000
    return (value.bits() | sign).as_f32()


def decode_e8m0(codes: Value) -> Value:
    """2^(code - 127) in fp32; 0xFF is NaN."""
    bits = select(codes.equals(0), codes.like(0x00400000), codes << 23)
    return select(codes.equals(255), codes.like(_F32_NAN), bits).as_f32()
