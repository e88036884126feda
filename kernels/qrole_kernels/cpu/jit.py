"""Machine code of kernel variants: built by LLVM once per machine, then loaded from a cache."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from qrole_kernels.cpu import object_cache
from qrole_kernels.cpu.builder import Kernel
from qrole_kernels.cpu.simd import F32, I32, I64, PTR
from qrole_kernels.cpu.targets import Target, host_target

_CTYPES: dict[ir.Type, Any] = {
    I64: ctypes.c_int64,
    I32: ctypes.c_int32,
    F32: ctypes.c_float,
    PTR: ctypes.c_void_p,
}


class KernelFamily:
    """All variants of one kernel. Calling it with the parts of a variant gives a function.

    The function takes what `parameters` declares, runs without the GIL, and returns nothing.
    """

    def __init__(self, build: Callable[..., None], parameters: dict[str, ir.Type]) -> None:
        self.name = build.__name__
        self.__doc__ = build.__doc__
        self._build = build
        self._parameters = parameters
        self._loaded: dict[tuple[object, ...], Callable[..., None]] = {}
        self._lock = threading.Lock()

    def __call__(self, *variant: object) -> Callable[..., None]:
        """The function for this variant, on the target selected at present."""
        target = current_target()
        function = self._loaded.get((target, *variant))
        if function is None:
            with self._lock:
                function = self._loaded.get((target, *variant))
                if function is None:
                    function = self._load(target, variant)
                    self._loaded[(target, *variant)] = function
        return function

    def _load(self, target: Target, variant: tuple[object, ...]) -> Callable[..., None]:
        name = self.symbol(variant)
        code = object_cache.read(name, _identity(target))
        if code is None:
            code = self.object_code(target, *variant)
            object_cache.write(name, _identity(target), code)
        engine = _engine(target)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        prototype = ctypes.CFUNCTYPE(None, *(_CTYPES[kind] for kind in self._parameters.values()))
        function = prototype(engine.get_function_address(name))
        # The engine owns the memory that the code lies in.
        function.engine = engine  # type: ignore[attr-defined]
        return function

    def symbol(self, variant: tuple[object, ...]) -> str:
        """The name under which the variant is compiled and cached."""
        return "_".join([self.name, *(str(part) for part in variant)])

    def object_code(self, target: Target, *variant: object) -> bytes:
        """The variant compiled for `target`, as a relocatable object file."""
        return bytes(_machine(target).emit_object(self._module(target, variant)))

    def assembly(self, target: Target, *variant: object) -> str:
        """The variant's machine code for `target` as text."""
        return str(_machine(target).emit_assembly(self._module(target, variant)))

    def _module(self, target: Target, variant: tuple[object, ...]) -> llvm.ModuleRef:
        kernel = Kernel(self.symbol(variant), self._parameters)
        self._build(kernel, *variant)
        module = llvm.parse_assembly(kernel.finish())
        module.verify()
        module.triple = llvm.get_process_triple()
        _promote_variables(module, target)
        return module


def kernel(**parameters: ir.Type) -> Callable[[Callable[..., None]], KernelFamily]:
    """Declare a kernel: decorates the function that builds it, given a `Kernel` and the variant.

    Args:
        parameters: Those of the compiled function, in order.
    """
    return lambda build: KernelFamily(build, parameters)


def _promote_variables(module: llvm.ModuleRef, target: Target) -> None:
    # The full -O2 pipeline takes longer than code generation and gains nothing on such code.
    builder = llvm.create_pass_builder(_machine(target), llvm.create_pipeline_tuning_options())
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_loop_rotate_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


def _identity(target: Target) -> str:
    versions = f"llvmlite {llvmlite.__version__} llvm {llvm.llvm_version_info}"
    return f"{llvm.get_process_triple()} {target.cpu} {target.features} {versions}"


def _machine(target: Target) -> llvm.TargetMachine:
    _initialize()
    triple = llvm.Target.from_triple(llvm.get_process_triple())
    return triple.create_target_machine(
        target.cpu, target.features, opt=2, reloc="pic", codemodel="small", jit=True
    )


def _engine(target: Target) -> llvm.ExecutionEngine:
    # The small code model needs code and constants side by side, as llvmlite's own memory manager
    # lays them out.
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(target), use_lmm=True)


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


_selected: Target | None = None


def current_target() -> Target:
    """The target that kernels run on: this machine's own, unless `select_target` chose another."""
    global _selected
    if _selected is None:
        _selected = host_target()
    return _selected


def select_target(target: Target | None) -> None:
    """Make every following call run code for `target`; None goes back to this machine's own.

    Raises:
        ArgumentError: This machine can't run it.
    """
    global _selected
    if target is not None:
        target.check_runs_here()
    _selected = target
