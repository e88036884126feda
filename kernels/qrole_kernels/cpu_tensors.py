"""The CPU kernels on torch tensors: checks, allocation, and pointers for `qrole_kernels.cpu`.

Signatures are those of `qrole_kernels.reference`; a function missing here has no CPU kernel.
"""

from qrole_kernels.cpu_matmul import matmul_f32, matmul_fp8_block

__all__ = ["matmul_f32", "matmul_fp8_block"]
