"""Compiling kernels for an architecture without a GPU, and reading the machine code.

A call of one of the package's functions is recorded instead of run, on meta tensors if need be, and
what it would have launched is compiled as triton's own just-in-time compiler would specialize it.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.cache import get_cache_manager

from qrole_kernels.cuda.catalog import calls_for
from qrole_kernels.cuda.launch import Argument, Launch, record
from qrole_kernels.errors import KernelError

_POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
}
_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
_RESOURCE = re.compile(r"\b(REG|STACK|LOCAL):(\d+)")


@dataclass(frozen=True)
class MachineCode:
    """One compiled kernel.

    `sass` lists the machine instructions. `registers` is per thread; `stack` and `local` are bytes
    per thread, `shared` bytes per program.
    """

    kernel: str
    arch: int
    ptx: str
    sass: str
    registers: int
    stack: int
    local: int
    shared: int

    @cached_property
    def opcodes(self) -> Counter[str]:
        """How often each machine instruction, modifiers included, stands in the code."""
        return Counter(_OPCODE.findall(self.sass))

    def count(self, pattern: str) -> int:
        """Number of machine instructions whose opcode starts with the regular expression."""
        return sum(n for opcode, n in self.opcodes.items() if re.match(pattern, opcode))

    def count_ptx(self, pattern: str) -> int:
        """Number of places in the PTX that match the regular expression."""
        return len(re.findall(pattern, self.ptx))


def compile_named(name: str, arch: int, fp_fusion: bool = False) -> list[MachineCode]:
    """Compile the kernels of a call of the catalog; see `compile_call`."""
    return compile_call(calls_for(arch)[name], arch, fp_fusion)


def compile_call(
    call: Callable[[], object], arch: int, fp_fusion: bool = False
) -> list[MachineCode]:
    """Compile all kernels that `call` would launch on compute capability `arch` (90 for 9.0).

    Args:
        call: Calls functions of this package, on tensors of any device.
        arch: 10 * major + minor.
        fp_fusion: Contract products and sums into fused multiply-adds, which no launch here does.

    Raises:
        KernelError: triton's interpreter is on, so that there is nothing to compile.
    """
    if triton.knobs.runtime.interpret:
        raise KernelError(
            "TRITON_INTERPRET=1",
            "kernels to compile",
            "Unset it before the first import of triton.",
        )
    with record(arch) as recording:
        call()
    return [_compile(launch, arch, fp_fusion) for launch in recording.launches]


def _compile(launch: Launch, arch: int, fp_fusion: bool) -> MachineCode:
    source = ASTSource(launch.kernel, *_specialization(launch))
    options = {"num_warps": launch.num_warps, "enable_fp_fusion": fp_fusion}
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    listing = _disassemble(compiled)
    resources = {name: int(value) for name, value in _RESOURCE.findall(listing)}
    return MachineCode(
        kernel=launch.kernel.__name__,
        arch=arch,
        ptx=compiled.asm["ptx"],
        sass=listing,
        registers=resources["REG"],
        stack=resources["STACK"],
        local=resources["LOCAL"],
        shared=compiled.metadata.shared,
    )


def _specialization(
    launch: Launch,
) -> tuple[dict[str, str], dict[str, object], dict[tuple[int], list[list[object]]]]:
    """Signature, constants and attributes, as just-in-time compilation derives them."""
    signature: dict[str, str] = {}
    constants: dict[str, object] = dict(launch.constants)
    attributes: dict[tuple[int], list[list[object]]] = {}
    for place, name in enumerate(launch.kernel.arg_names):
        value = launch.arguments.get(name)
        if value is None or (isinstance(value, int) and value == 1):
            signature[name] = "constexpr"
            constants.setdefault(name, value)
            continue
        signature[name] = _type_name(value)
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
            attributes[place,] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def _type_name(value: Argument) -> str:
    if isinstance(value, Tensor):
        return _POINTERS[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _disassemble(compiled: Any) -> str:
    """Resource usage and machine instructions, kept beside the binary in triton's cache."""
    cache = get_cache_manager(compiled.hash)
    name = f"{compiled.name}.sass"
    kept = cache.get_file(name)
    if kept is not None:
        return Path(kept).read_text()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", "--dump-sass"]
        listing = subprocess.run(
            [*command, cubin.name], capture_output=True, text=True, check=True
        ).stdout
    cache.put(listing, name)
    return listing
