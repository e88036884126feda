"""What the entry points have in common: the description and the check of their arguments.

Conventions of all `host_...` functions: `src` is the address of a matrix of `rows` x `cols`
elements of `dtype` ("f32", "bf16" or "f16"), whose rows are `row_stride` and whose columns are
`col_stride` elements apart; one of the two is 1, and a transposed matrix is straightened strip by
strip. All other tensors are contiguous, with codes packed along rows and compact scales. A matrix
may be processed in portions of rows that begin at multiples of the block height. `threads` is the
number of threads, 0 the default (`threads.default_threads`).
"""

from __future__ import annotations

from qrole_kernels.cpu.pieces import Matrix
from qrole_kernels.cpu.source import SOURCES
from qrole_kernels.errors import ArgumentError


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Check that an option has one of its values.

    Raises:
        ArgumentError: It hasn't.
    """
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ArgumentError(f"{name}={value!r}", f"one of {listed}", "Pass one of these values.")


def high_precision(
    src: int, dtype: str, rows: int, cols: int, row_stride: int, col_stride: int
) -> Matrix:
    """The input of quantization."""
    check_choice("dtype", dtype, tuple(SOURCES))
    return Matrix(src, SOURCES[dtype].nbytes, rows, cols, row_stride, col_stride)


def contiguous(rows: int, cols: int) -> Matrix:
    """The shape of tensors that lie without gaps, at addresses of their own."""
    return Matrix(0, 0, rows, cols, cols)


def value_nbytes(dtype: str) -> int:
    """Bytes of one dequantized element."""
    check_choice("dtype", dtype, tuple(SOURCES))
    return SOURCES[dtype].nbytes
