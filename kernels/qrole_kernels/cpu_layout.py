"""The layout of matrices in the CPU's memory."""

from torch import Tensor

from qrole_kernels import cpu

__all__ = ["row_major"]


def row_major(x: Tensor) -> Tensor:
    """`x.contiguous()` of any CPU tensor; of a transposed matrix, in a fraction of torch's time."""
    if x.dim() != 2 or x.is_contiguous() or x.stride(0) != 1 or x.stride(1) < x.shape[0]:
        return x.contiguous()
    if x.element_size() not in (2, 4) or not cpu.is_compiled():
        return x.contiguous()
    from qrole_kernels.cpu.transpose import host_transpose

    y = x.new_empty(x.shape)
    rows, cols = x.shape
    host_transpose(x.data_ptr(), x.element_size(), cols, rows, x.stride(1), y.data_ptr())
    return y
