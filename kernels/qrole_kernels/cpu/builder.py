"""A kernel under construction: its parameters, variables, scratch memory, loops and branches."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from llvmlite import ir

from qrole_kernels.cpu.simd import I8, I32, I64, PTR, Pointer, Value, literal

# All exceptions masked, nearest even, no flushing of subnormals.
_DEFAULT_MXCSR = 0x1F80

Anything = TypeVar("Anything", Value, Pointer)


class Variable(Generic[Anything]):
    """A value or an address that loops and branches may replace."""

    __slots__ = ("_slot", "_type", "_wrap", "builder")

    def __init__(self, builder: ir.IRBuilder, slot: ir.AllocaInstr, initial: Anything) -> None:
        self.builder = builder
        self._slot = slot
        self._type = initial.ir.type
        self._wrap: type[Anything] = type(initial)
        self.set(initial)

    def get(self) -> Anything:
        """What it holds at present."""
        return self._wrap(self.builder, self.builder.load(self._slot, typ=self._type))

    def set(self, value: Anything) -> None:
        """Replaces what it holds."""
        self.builder.store(value.ir, self._slot)


class Kernel:
    """One function under construction; the parameters are reached as `k["name"]`."""

    def __init__(self, name: str, parameters: Mapping[str, ir.Type]) -> None:
        self.module = ir.Module(name)
        kind = ir.FunctionType(ir.VoidType(), list(parameters.values()))
        self.function = ir.Function(self.module, kind, name)
        self._entry = self.function.append_basic_block("entry")
        self.builder = ir.IRBuilder(self.function.append_basic_block("body"))
        self._arguments = dict(zip(parameters, self.function.args, strict=True))
        for argument in self.function.args:
            if isinstance(argument.type, ir.PointerType):
                argument.add_attribute("noalias")

    def __getitem__(self, name: str) -> Value:
        return Value(self.builder, self._arguments[name])

    def pointer(self, name: str) -> Pointer:
        """A parameter that is an address."""
        return Pointer(self.builder, self._arguments[name])

    def constant(self, kind: ir.Type, number: float) -> Value:
        """A constant; a vector type gets it in every lane."""
        return Value(self.builder, literal(kind, number))

    def vector(self, kind: ir.VectorType, numbers: Sequence[int]) -> Value:
        """A constant vector of integers."""
        return Value(self.builder, ir.Constant(kind, list(numbers)))

    def _reserve(self, kind: ir.Type, alignment: int | None = None) -> ir.AllocaInstr:
        slot = ir.IRBuilder(self._entry).alloca(kind)
        slot.type = PTR
        if alignment:
            slot.align = alignment
        return slot

    def variable(self, initial: Anything) -> Variable[Anything]:
        """A variable that starts with `initial`."""
        return Variable(self.builder, self._reserve(initial.ir.type), initial)

    def scratch(self, nbytes: int) -> Pointer:
        """Memory of this call alone, on the stack."""
        return Pointer(self.builder, self._reserve(ir.ArrayType(I8, nbytes), alignment=64))

    @contextmanager
    def range(self, stop: Value | int, step: int = 1) -> Iterator[Value]:
        """A loop over 0, step, 2*step, … below `stop` (64-bit)."""
        limit = stop.ir if isinstance(stop, Value) else I64(stop)
        index = self._reserve(I64)
        self.builder.store(I64(0), index)
        head = self.function.append_basic_block("loop")
        body = self.function.append_basic_block("do")
        done = self.function.append_basic_block("done")
        self.builder.branch(head)
        self.builder.position_at_end(head)
        present = self.builder.load(index, typ=I64)
        self.builder.cbranch(self.builder.icmp_signed("<", present, limit), body, done)
        self.builder.position_at_end(body)
        yield Value(self.builder, present)
        self.builder.store(self.builder.add(present, I64(step)), index)
        self.builder.branch(head)
        self.builder.position_at_end(done)

    @contextmanager
    def when(self, condition: Value, *, rare: bool = False) -> Iterator[None]:
        """What is inside happens where the scalar condition holds."""
        with self.builder.if_then(condition.ir, likely=False if rare else None):
            yield

    @contextmanager
    def unless(self, condition: Value) -> Iterator[None]:
        """What is inside happens where the scalar condition, which usually holds, doesn't."""
        with self.builder.if_then(self.builder.not_(condition.ir), likely=False):
            yield

    def either(self, usual: Value, body: Callable[[bool], None]) -> None:
        """Two branches: `body(True)` where the scalar condition holds, which is likely."""
        with self.builder.if_else(usual.ir, likely=True) as branches:
            for branch, holds in zip(branches, (True, False), strict=True):
                with branch:
                    body(holds)

    def finish(self) -> str:
        """The module's text."""
        entry = ir.IRBuilder(self._entry)
        if platform.machine() in ("x86_64", "AMD64"):
            self._default_arithmetic(entry)
        entry.branch(self.function.basic_blocks[1])
        self.builder.ret_void()
        return str(self.module)

    def _default_arithmetic(self, entry: ir.IRBuilder) -> None:
        """Rounding to nearest with subnormals, whatever mode the caller's thread is in."""
        kind = ir.FunctionType(ir.VoidType(), [PTR])
        save, load = (
            ir.Function(self.module, kind, f"llvm.x86.sse.{name}mxcsr") for name in ("st", "ld")
        )
        given, default = self._reserve(I32), self._reserve(I32)
        entry.position_at_end(self._entry)
        entry.call(save, [given])
        entry.store(I32(_DEFAULT_MXCSR), default)
        entry.call(load, [default])
        self.builder.call(load, [given])
