"""The two levels of NVFP4 scales as Triton device functions.

Shape suffixes as in `tiles`; a per-tensor value has one row, which broadcasts.
"""

import triton
import triton.language as tl

from qrole_kernels.cuda.rounding import FLOAT32_MAX, decode_fp8


@triton.jit
def encode_scale(amax, RANGE: tl.constexpr):
    """Factor RANGE / amax that brings block maxima into E4M3 range, elementwise."""
    s_enc = tl.minimum(tl.math.div_rn(RANGE, amax), FLOAT32_MAX)
    return tl.where((amax == 0.0) | (s_enc == 0.0), 1.0, s_enc)


@triton.jit
def block_factor(byte, s_enc, ARCH: tl.constexpr):
    """(R/BR, C/16) factor of the elements of each block, of its E4M3 scale byte and ``s_enc``.

    A scale of zero divides by nothing: the factor saturates at the largest fp32.
    """
    decoded = decode_fp8(byte, "e4m3", ARCH) * tl.math.div_rn(1.0, s_enc)[:, None]
    return tl.minimum(tl.math.div_rn(1.0, decoded), FLOAT32_MAX)


@triton.jit
def over_rows(byte, BLOCK_ROWS: tl.constexpr):
    """(R/BR, B) -> (R, B), each row of blocks repeated for its BLOCK_ROWS rows."""
    ROWS: tl.constexpr = byte.shape[0]
    COLS: tl.constexpr = byte.shape[1]
    repeated = tl.broadcast_to(byte[:, None, :], (ROWS, BLOCK_ROWS, COLS))
    return tl.reshape(repeated, (ROWS * BLOCK_ROWS, COLS))
