"""The ops: each declared once with `torch.library` (`qrole::<name>`), the same on every device.

Signatures and meaning are those of `qrole_kernels.reference`. An op runs the kernel of its tensors'
device; what a device has no kernel for runs the reference there. All can be traced by
`torch.compile`. None is differentiable: the gradient is the caller's decision.
"""

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import torch

from qrole_kernels import fakes, reference

P = ParamSpec("P")
R = TypeVar("R")

_KERNEL_MODULES = {"CPU": "qrole_kernels.cpu_tensors", "CUDA": "qrole_kernels.cuda"}
_LIBRARY: Any = torch.library.Library("qrole", "DEF")  # type: ignore[no-untyped-call]


@functools.cache
def _kernels(device: str) -> ModuleType:
    """The kernels of a device, imported when it is first used."""
    return importlib.import_module(_KERNEL_MODULES[device])


def _implementation(oracle: Callable[P, R], device: str) -> Callable[P, R]:
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        kernel: Callable[P, R] = getattr(_kernels(device), oracle.__name__, oracle)
        return kernel(*args, **kwargs)

    return run


def declare(
    oracle: Callable[P, R], fake: Callable[P, R], cuda: Callable[P, R] | None = None
) -> Callable[P, R]:
    """Declare the op that `oracle` defines, under its name.

    Args:
        oracle: Plain torch, for any device without a kernel of this name.
        fake: Makes outputs of the same shapes and dtypes.
        cuda: Runs on CUDA instead of the kernel of this name.
    """
    name = oracle.__name__
    schema = torch.library.infer_schema(oracle, mutates_args=())
    _LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, _implementation(oracle, "CPU"), "CPU")
    _LIBRARY.impl(name, cuda or _implementation(oracle, "CUDA"), "CUDA")
    # Results don't require gradients, instead of failing at the backward pass.
    _LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"qrole::{name}", fake, lib=_LIBRARY)
    overload = getattr(torch.ops.qrole, name).default

    @functools.wraps(oracle)
    def op(*args: P.args, **kwargs: P.kwargs) -> R:
        result: R = overload(*args, **kwargs)
        return result

    return op


amax = declare(reference.amax, fakes.amax)
amax_rows = declare(reference.amax_rows, fakes.amax_rows)
fp8_scale = declare(reference.fp8_scale, fakes.fp8_scale)
quantize_fp8 = declare(reference.quantize_fp8, fakes.quantize_fp8)
quantize_fp8_current = declare(reference.quantize_fp8_current, fakes.quantize_fp8_current)
quantize_fp8_rows = declare(reference.quantize_fp8_rows, fakes.quantize_fp8_rows)
quantize_fp8_block = declare(reference.quantize_fp8_block, fakes.quantize_fp8_block)
quantize_mxfp8 = declare(reference.quantize_mxfp8, fakes.quantize_mxfp8)
quantize_nvfp4 = declare(reference.quantize_nvfp4, fakes.quantize_nvfp4)
quantize_mxfp4 = declare(reference.quantize_mxfp4, fakes.quantize_mxfp4)
dequantize_fp8 = declare(reference.dequantize_fp8, fakes.dequantize_fp8)
dequantize_fp8_rows = declare(reference.dequantize_fp8_rows, fakes.dequantize_fp8_rows)
dequantize_fp8_block = declare(reference.dequantize_fp8_block, fakes.dequantize_fp8_block)
dequantize_mxfp8 = declare(reference.dequantize_mxfp8, fakes.dequantize_mxfp8)
dequantize_nvfp4 = declare(reference.dequantize_nvfp4, fakes.dequantize_nvfp4)
dequantize_mxfp4 = declare(reference.dequantize_mxfp4, fakes.dequantize_mxfp4)
hadamard16 = declare(reference.hadamard16, fakes.hadamard16)
matmul_f32 = declare(reference.matmul_f32, fakes.matmul_f32)
matmul_fp8_block = declare(reference.matmul_fp8_block, fakes.matmul_fp8_block)
pad_scales = declare(reference.pad_scales, fakes.pad_scales)
swizzle_scales = declare(reference.swizzle_scales, fakes.swizzle_scales)
unswizzle_scales = declare(reference.unswizzle_scales, fakes.unswizzle_scales)
