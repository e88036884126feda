"""The per-tensor numbers of a checkpoint, in fp32 by plain Python; see `docs/numerics.md`.

A product or quotient of two fp32 numbers taken in double and rounded once more to fp32 is the
correctly rounded fp32 result, so no array library is needed here.
"""

from __future__ import annotations

import ctypes
import math
import struct

__all__ = ["FLOAT32_MAX", "f32", "fp8_scale", "global_divisor", "global_multiplier", "reciprocal"]

FLOAT32_MAX = float.fromhex("0x1.fffffep+127")
E4M3_MAX = 448.0
E2M1_MAX = 6.0


def f32(value: float) -> float:
    """One rounding to fp32, to the nearest even."""
    return ctypes.c_float(value).value


def fp8_scale(amax: float, *, power_of_two: bool = False, epsilon: float = 0.0) -> float:
    """The factor that brings `amax` to 448; 1 where amax is 0 or not finite."""
    amax = max(f32(amax), f32(epsilon))
    if amax == 0 or not math.isfinite(amax):
        return 1.0
    scale = min(f32(E4M3_MAX / amax), FLOAT32_MAX)
    if power_of_two:
        bits = struct.unpack("<I", struct.pack("<f", scale))[0] & 0xFF800000
        scale = struct.unpack("<f", struct.pack("<I", bits))[0]
    return scale


def reciprocal(scale: float) -> float:
    """1/scale in fp32: what a stored multiplier is."""
    return f32(1.0 / scale)


def global_divisor(amax: float, e4m3_max: int = 448) -> float:
    """NVFP4's factor 6 * e4m3_max / amax; 1 where amax is 0 or infinite."""
    amax = f32(amax)
    if amax == 0:
        return 1.0
    scale = min(f32(E2M1_MAX * e4m3_max / amax), FLOAT32_MAX)
    return scale or 1.0


def global_multiplier(amax: float, e4m3_max: int = 448) -> float:
    """NVFP4's amax / (6 * e4m3_max), what ModelOpt stores; 1 where amax is 0."""
    return f32(f32(amax) / (E2M1_MAX * e4m3_max)) or 1.0
