"""Launching Triton kernels, and recording launches so that they can be compiled without a GPU."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from qrole_kernels.errors import ArgumentError

DTYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}

Argument = Tensor | int | float


@dataclass(frozen=True)
class Launch:
    """One kernel call.

    `arguments` are the kernel's run-time arguments, `constants` its constexprs; the order of the
    kernel's signature is the kernel's own.
    """

    kernel: Any
    programs: int
    arguments: Mapping[str, Argument]
    constants: Mapping[str, int | float | str]
    num_warps: int


@dataclass
class Recording:
    """Launches that were made for a target architecture instead of being run."""

    arch: int
    launches: list[Launch] = field(default_factory=list)


_recording: ContextVar[Recording | None] = ContextVar("_recording", default=None)


@contextmanager
def record(arch: int) -> Iterator[Recording]:
    """Record the launches inside the block, for compute capability `arch`, and run none of them.

    Tensors may be on the meta device.
    """
    recording = Recording(arch)
    token = _recording.set(recording)
    try:
        yield recording
    finally:
        _recording.reset(token)


def architecture(device: torch.device) -> int:
    """10 * major + minor of the compute capability; 0, the integer path, in the interpreter.

    Raises:
        ArgumentError: The device is no CUDA device and the interpreter is off.
    """
    recording = _recording.get()
    if recording is not None:
        return recording.arch
    if triton.knobs.runtime.interpret:
        return 0
    if device.type != "cuda":
        raise ArgumentError(
            f"a tensor on {device}",
            "a tensor on a CUDA device",
            "Move it there, or set TRITON_INTERPRET=1 before the first import of triton.",
        )
    return _capability(device)


@cache
def _capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def launch(
    kernel: Any,
    programs: int,
    arguments: Mapping[str, Argument],
    constants: Mapping[str, int | float | str],
    num_warps: int = 4,
) -> None:
    """Run `programs` instances of a kernel on the device of its tensors.

    Raises:
        ArgumentError: They are on a device that has no such kernels.
    """
    if programs == 0:
        return
    recording = _recording.get()
    if recording is not None:
        recording.launches.append(Launch(kernel, programs, arguments, constants, num_warps))
        return
    device = next(value.device for value in arguments.values() if isinstance(value, Tensor))
    architecture(device)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        # A fused multiply-add rounds once where the definition rounds twice.
        kernel[(programs,)](
            **arguments,
            **constants,
            num_warps=num_warps,
            enable_fp_fusion=False,
        )
