"""High-precision input, 32 neighbouring elements (a vector) at a time, in the shape packing wants.

The even and the odd elements are kept apart: two codes then join to a byte, or two bytes to a word,
by a shift and an or. For 16-bit input the pair costs nothing, since the two elements already share
a 32-bit lane.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from qrole_kernels.cpu.simd import I16, I32, Pointer, Value, lanes, maximum, minimum, select

VECTOR = 32
"""Elements per step."""
AHEAD = 8192
"""Bytes between what a row-wise loop reads and what it asks for: two pages, since the processor's
own prefetching stops at the end of a page."""
F32_INF = 0x7F800000

_CACHE_LINE = 64
_EVEN = range(0, 32, 2)
_ODD = range(1, 32, 2)
_WORDS = lanes(I32, 16)
_HALVES = lanes(I16, 32)


@dataclass(frozen=True)
class Pair:
    """32 elements: magnitudes of the even and the odd ones (16 x fp32 each).

    `top` (32 x 16 bits, in order) has each element's sign in its highest bit; below it a magnitude
    that is above `inf16` exactly for NaN.
    """

    even: Value
    odd: Value
    top: Value
    inf16: int

    def is_nan(self) -> Value:
        """32 lanes, in order."""
        return (self.top & 0x7FFF) > self.inf16


class Source:
    """How elements of one dtype are read."""

    nbytes: int
    key_type: ir.Type
    """What magnitudes are compared as: 32 x i16 or 16 x i32 (even and odd already joined)."""
    inf: int
    """Key of an infinity; NaN keys are above it."""

    @property
    def vector_nbytes(self) -> int:
        """Bytes of a vector."""
        return VECTOR * self.nbytes

    def vectors(self, start: Pointer, count: int) -> list[Pointer]:
        """The addresses of neighbouring vectors."""
        return [start.at(i * self.vector_nbytes) for i in range(count)]

    def prefetch(self, address: Pointer) -> None:
        """Has the vector at `address` brought near."""
        for offset in range(0, self.vector_nbytes, _CACHE_LINE):
            address.at(offset).prefetch()

    def keys(self, address: Pointer) -> Value:
        """Integers that sort like the magnitudes of the vector at `address`."""
        raise NotImplementedError

    def keys_without_nan(self, address: Pointer) -> Value:
        """The same with 0 in place of NaN."""
        raise NotImplementedError

    def join(self, keys: Value) -> Value:
        """The larger key of each pair (16 lanes), as the bits of an fp32 magnitude."""
        raise NotImplementedError

    def pair(self, address: Pointer) -> Pair:
        """The vector at `address`."""
        raise NotImplementedError


class _Sixteen(Source):
    nbytes = 2
    key_type = _HALVES

    def keys(self, address: Pointer) -> Value:
        return address.load(_HALVES) & 0x7FFF

    def keys_without_nan(self, address: Pointer) -> Value:
        keys = self.keys(address)
        return select(keys > self.inf, 0, keys)

    def join(self, keys: Value) -> Value:
        words = keys.as_type(_WORDS)
        return self.widen_key(maximum(words & 0xFFFF, words >> 16))

    def widen_key(self, key: Value) -> Value:
        """The bits of the fp32 magnitude of 16-bit keys that lie in 32-bit lanes."""
        raise NotImplementedError

    def pair(self, address: Pointer) -> Pair:
        words = address.load(_WORDS)
        even, odd = self.halves(words & 0x7FFF7FFF)
        return Pair(even, odd, words.as_type(_HALVES), self.inf)

    def halves(self, magnitudes: Value) -> tuple[Value, Value]:
        """The fp32 values of the low and the high halves of 32-bit lanes."""
        raise NotImplementedError


class _Bf16(_Sixteen):
    inf = 0x7F80

    def widen_key(self, key: Value) -> Value:
        return key << 16

    def halves(self, magnitudes: Value) -> tuple[Value, Value]:
        return (magnitudes << 16).as_f32(), (magnitudes & 0xFFFF0000).as_f32()


class _F16(_Sixteen):
    inf = 0x7C00

    def widen_key(self, key: Value) -> Value:
        # The exponent moves into place unbiased; the product mends that, of subnormals too.
        finite = ((key << 13).as_f32() * 2.0**112).bits()
        return select(key >= self.inf, (key << 13) | F32_INF, finite)

    def halves(self, magnitudes: Value) -> tuple[Value, Value]:
        low, high = magnitudes & 0xFFFF, magnitudes >> 16
        return self.widen_key(low).as_f32(), self.widen_key(high).as_f32()


class _F32(Source):
    nbytes = 4
    key_type = _WORDS
    inf = F32_INF

    def _split(self, address: Pointer) -> tuple[Value, Value]:
        first, second = address.load(_WORDS), address.at(64).load(_WORDS)
        return first.take(_EVEN, second), first.take(_ODD, second)

    def keys(self, address: Pointer) -> Value:
        even, odd = self._split(address)
        return maximum(even & 0x7FFFFFFF, odd & 0x7FFFFFFF)

    def keys_without_nan(self, address: Pointer) -> Value:
        even, odd = (bits & 0x7FFFFFFF for bits in self._split(address))
        return maximum(select(even > self.inf, 0, even), select(odd > self.inf, 0, odd))

    def join(self, keys: Value) -> Value:
        return keys

    def pair(self, address: Pointer) -> Pair:
        even, odd = self._split(address)
        even_magnitude, odd_magnitude = even & 0x7FFFFFFF, odd & 0x7FFFFFFF
        low = (_round_up(even_magnitude) >> 16) | ((even >> 16) & 0x8000)
        high = (_round_up(odd_magnitude) & 0xFFFF0000) | (odd & 0x80000000)
        top = (low | high).as_type(_HALVES)
        return Pair(even_magnitude.as_f32(), odd_magnitude.as_f32(), top, F32_INF >> 16)


def _round_up(magnitude: Value) -> Value:
    # A NaN's payload may lie in the low 16 bits alone.
    return minimum(magnitude, 0x7FFF0000) + 0xFFFF


SOURCES: dict[str, Source] = {"f32": _F32(), "bf16": _Bf16(), "f16": _F16()}
