"""Machine code for one kernel variant: built by LLVM once per machine, then loaded from a cache of object files."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from qrole_kernels.cpu import object_cache
from qrole_kernels.cpu.simd import F32, I32, I64, PTR, Kernel
from qrole_kernels.cpu.targets import Target, host_target

_CTYPES = {I64: ctypes.c_int64, I32: ctypes.c_int32, F32: ctypes.c_float, PTR: ctypes.c_void_p}


@dataclass(frozen=True)
class _Program:
    """Loaded code; the engine owns the memory that `function` points to."""

    engine: llvm.ExecutionEngine
    function: Callable[..., None]


class KernelFamily:
    """All variants of one kernel. Calling it with a variant's parts gives the compiled function.

    The function takes what `parameters` declares, runs without the GIL, and returns nothing.
    """

    def __init__(self, build: Callable[..., None], parameters: dict[str, ir.Type]) -> None:
        self.name = build.__name__
        self.parameters = parameters
        self._build = build
        self._programs: dict[tuple[Target, tuple[object, ...]], _Program] = {}
        self._lock = threading.Lock()

    def __call__(self, *variant: object) -> Callable[..., None]:
        """The function for this variant, on the target selected at present."""
        key = (current_target(), variant)
        program = self._programs.get(key)
        if program is None:
            with self._lock:
                program = self._programs.get(key)
                if program is None:
                    program = self._programs[key] = self._load(*key)
        return program.function

    def symbol(self, variant: tuple[object, ...]) -> str:
        """The name under which the variant is compiled and cached."""
        return "_".join([self.name, *(str(part) for part in variant)])

    def assembly(self, target: Target, *variant: object) -> str:
        """The variant's machine code as text, for reading."""
        return str(_machine(target).emit_assembly(self._optimized(target, variant)))

    def _load(self, target: Target, variant: tuple[object, ...]) -> _Program:
        name = self.symbol(variant)
        identity = f"{target.cpu} {target.features} llvmlite {llvmlite.__version__}"
        code = object_cache.read(name, identity)
        if code is None:
            code = self.object_code(target, *variant)
            object_cache.write(name, identity, code)
        engine = _engine(target)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        kind = ctypes.CFUNCTYPE(None, *(_CTYPES[part] for part in self.parameters.values()))
        return _Program(engine, kind(engine.get_function_address(name)))

    def object_code(self, target: Target, *variant: object) -> bytes:
        """The variant compiled for `target`, as a relocatable object file."""
        return bytes(_machine(target).emit_object(self._optimized(target, variant)))

    def _optimized(self, target: Target, variant: tuple[object, ...]) -> llvm.ModuleRef:
        kernel = Kernel(self.symbol(variant), self.parameters)
        self._build(kernel, *variant)
        module = llvm.parse_assembly(kernel.finish())
        module.verify()
        module.triple = llvm.get_process_triple()
        _promote_variables(module, target)
        return module


def kernel(**parameters: ir.Type) -> Callable[[Callable[..., None]], KernelFamily]:
    """Declares a kernel: the parameters of the compiled function, above the function that builds it."""
    return lambda build: KernelFamily(build, parameters)


def _promote_variables(module: llvm.ModuleRef, target: Target) -> None:
    # The full -O2 pipeline costs more than code generation and gains nothing on straight vector code.
    builder = llvm.create_pass_builder(_machine(target), llvm.create_pipeline_tuning_options())
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_loop_rotate_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


def _machine(target: Target) -> llvm.TargetMachine:
    _initialize()
    triple = llvm.Target.from_triple(llvm.get_process_triple())
    return triple.create_target_machine(target.cpu, target.features, opt=2, reloc="pic", codemodel="small", jit=True)


def _engine(target: Target) -> llvm.ExecutionEngine:
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(target), use_lmm=True)


_initialized = False


def _initialize() -> None:
    global _initialized
    if not _initialized:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        _initialized = True


_selected: Target | None = None


def current_target() -> Target:
    """The target that kernels run on: this machine's own, unless `select_target` chose another."""
    global _selected
    if _selected is None:
        _selected = host_target()
    return _selected


def select_target(target: Target | None) -> None:
    """Makes every following call run code for `target`; None goes back to this machine's own.

    Raises:
        ArgumentError: This machine can't run it.
    """
    global _selected
    if target is not None:
        target.check_runs_here()
    _selected = target
