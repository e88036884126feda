"""A small vector language over LLVM IR, in which a kernel reads like its formula.

A `Value` is a scalar or a vector of lanes; Python operators emit instructions::

    k = Kernel("scale", {"src": PTR, "out": PTR, "n": I64, "factor": F32})
    with k.range(k["n"]) as i:
        x = k.pointer("src").at(i * 64).load(lanes(F32, 16))
        k.pointer("out").at(i * 64).store(x * k["factor"].splat(16))

Nearly every integer here is a bit pattern without its sign. Therefore `>>` shifts in zeros, while
`<`, `maximum` and `minimum` compare integers as signed numbers. Floating-point comparisons are
false on NaN, so `minimum(x, limit)` maps NaN to `limit`. Arithmetic is IEEE, subnormals included:
it never contracts to fused multiply-add and is never reordered.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

I1, I8, I16 = ir.IntType(1), ir.IntType(8), ir.IntType(16)
I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
PTR = ir.PointerType()


def lanes(element: ir.Type, count: int) -> ir.VectorType:
    """The vector type of `count` lanes."""
    return ir.VectorType(element, count)


def _element(kind: ir.Type) -> ir.Type:
    return kind.element if isinstance(kind, ir.VectorType) else kind


def literal(kind: ir.Type, number: float) -> ir.Constant:
    """The constant `number` in every lane."""
    element = _element(kind)
    one = float(number) if element == F32 else int(number) & ((1 << element.width) - 1)
    scalar = ir.Constant(element, one)
    if not isinstance(kind, ir.VectorType):
        return scalar
    return _Splat(kind, scalar)


class _Splat(ir.Constant):  # type: ignore[misc]
    """One scalar in every lane; spelled out, it would make the text several times as long."""

    def __init__(self, kind: ir.VectorType, scalar: ir.Constant) -> None:
        super().__init__(kind, ir.Undefined)
        self._scalar = scalar

    def _get_reference(self) -> str:
        return f"splat ({self._scalar.type} {self._scalar.get_reference()})"


def intrinsic(
    builder: ir.IRBuilder, name: str, result: ir.Type, parameters: Sequence[ir.Type]
) -> ir.Function:
    """LLVM's built-in function of this name, declared once per module."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, parameters), name)


class Value:
    """A scalar or a vector; Python numbers beside it become constants of its type."""

    __slots__ = ("builder", "ir")

    def __init__(self, builder: ir.IRBuilder, value: ir.Value) -> None:
        self.builder = builder
        self.ir = value

    @property
    def type(self) -> ir.Type:
        """The LLVM type."""
        return self.ir.type

    @property
    def count(self) -> int:
        """Number of lanes; 1 for a scalar."""
        return self.type.count if isinstance(self.type, ir.VectorType) else 1

    @property
    def is_float(self) -> bool:
        """Whether the lanes are fp32."""
        return bool(_element(self.type) == F32)

    def like(self, number: float) -> Value:
        """The constant `number` in every lane, in this value's type."""
        return Value(self.builder, literal(self.type, number))

    def _operand(self, other: Value | float) -> ir.Value:
        return other.ir if isinstance(other, Value) else literal(self.type, other)

    def _emit(self, name: str, other: Value | float) -> Value:
        return Value(self.builder, getattr(self.builder, name)(self.ir, self._operand(other)))

    def __add__(self, other: Value | float) -> Value:
        return self._emit("fadd" if self.is_float else "add", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._emit("fsub" if self.is_float else "sub", other)

    def __mul__(self, other: Value | float) -> Value:
        return self._emit("fmul" if self.is_float else "mul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self._emit("fdiv", other)

    def __rtruediv__(self, number: float) -> Value:
        return self.like(number) / self

    def __floordiv__(self, other: Value | float) -> Value:
        return self._emit("udiv", other)

    def __rsub__(self, number: float) -> Value:
        return self.like(number) - self

    def __and__(self, other: Value | float) -> Value:
        return self._emit("and_", other)

    def __or__(self, other: Value | float) -> Value:
        return self._emit("or_", other)

    def __xor__(self, other: Value | float) -> Value:
        return self._emit("xor", other)

    def __lshift__(self, other: Value | float) -> Value:
        return self._emit("shl", other)

    def __rshift__(self, other: Value | float) -> Value:
        return self._emit("lshr", other)

    def _compare(self, operator: str, other: Value | float) -> Value:
        compare = self.builder.fcmp_ordered if self.is_float else self.builder.icmp_signed
        return Value(self.builder, compare(operator, self.ir, self._operand(other)))

    def __lt__(self, other: Value | float) -> Value:
        return self._compare("<", other)

    def __le__(self, other: Value | float) -> Value:
        return self._compare("<=", other)

    def __gt__(self, other: Value | float) -> Value:
        return self._compare(">", other)

    def __ge__(self, other: Value | float) -> Value:
        return self._compare(">=", other)

    def equals(self, other: Value | float) -> Value:
        """Lane-wise equality (`==` stays Python's, so that values can be put in sets)."""
        return self._compare("==", other)

    def as_type(self, kind: ir.Type) -> Value:
        """The same bits read as another type of the same size."""
        return Value(self.builder, self.builder.bitcast(self.ir, kind))

    def _with_element(self, element: ir.Type) -> ir.Type:
        return lanes(element, self.count) if isinstance(self.type, ir.VectorType) else element

    def bits(self) -> Value:
        """fp32 lanes as 32-bit integers."""
        return self.as_type(self._with_element(I32))

    def as_f32(self) -> Value:
        """32-bit integer lanes read as fp32."""
        return self.as_type(self._with_element(F32))

    def magnitude(self) -> Value:
        """fp32 lanes without their signs."""
        return (self.bits() & 0x7FFFFFFF).as_f32()

    def to_f32(self) -> Value:
        """Signed integers converted to fp32."""
        return Value(self.builder, self.builder.sitofp(self.ir, self._with_element(F32)))

    def truncate(self) -> Value:
        """fp32 cut to signed 32-bit integers, which it must fit."""
        return Value(self.builder, self.builder.fptosi(self.ir, self._with_element(I32)))

    def narrow(self, element: ir.Type) -> Value:
        """The low bits of every lane."""
        return Value(self.builder, self.builder.trunc(self.ir, self._with_element(element)))

    def widen(self, element: ir.Type) -> Value:
        """Every lane zero-extended."""
        return Value(self.builder, self.builder.zext(self.ir, self._with_element(element)))

    def splat(self, count: int) -> Value:
        """A scalar repeated in `count` lanes."""
        kind = lanes(self.type, count)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, self.ir, I32(0))
        return Value(self.builder, first).take([0] * count)

    def take(self, indices: Sequence[int], other: Value | None = None) -> Value:
        """Lanes by index; indices past this value's lanes count into `other`."""
        second = other.ir if other is not None else ir.Constant(self.type, ir.Undefined)
        mask = ir.Constant(lanes(I32, len(indices)), list(indices))
        return Value(self.builder, self.builder.shuffle_vector(self.ir, second, mask))

    def lane(self, index: int) -> Value:
        """One lane as a scalar."""
        return Value(self.builder, self.builder.extract_element(self.ir, I32(index)))

    def largest_lane(self) -> Value:
        """The largest lane of a vector of integers."""
        element = self.type.element
        name = f"llvm.vector.reduce.smax.v{self.count}i{element.width}"
        function = intrinsic(self.builder, name, element, [self.type])
        return Value(self.builder, self.builder.call(function, [self.ir]))

    def any(self) -> Value:
        """Whether a comparison holds in any of its lanes."""
        return self._lanes_as_bits("!=", 0)

    def all(self) -> Value:
        """Whether a comparison holds in all of its lanes."""
        return self._lanes_as_bits("==", (1 << self.count) - 1)

    def _lanes_as_bits(self, operator: str, bits: int) -> Value:
        if self.count == 1:
            return self
        mask = self.as_type(ir.IntType(self.count))
        return Value(self.builder, self.builder.icmp_unsigned(operator, mask.ir, mask.type(bits)))


def select(condition: Value, then: Value | float, otherwise: Value | float) -> Value:
    """Lane by lane, `then` where the condition holds; one of the two must be a `Value`."""
    model = then if isinstance(then, Value) else otherwise
    assert isinstance(model, Value)
    first, second = model._operand(then), model._operand(otherwise)
    return Value(model.builder, model.builder.select(condition.ir, first, second))


def minimum(value: Value, other: Value | float) -> Value:
    """The smaller; `other` where a floating-point `value` is NaN."""
    return select(value < other, value, other)


def maximum(value: Value, other: Value | float) -> Value:
    """The larger; `other` where a floating-point `value` is NaN."""
    return select(value > other, value, other)


def gather(scalars: Sequence[Value]) -> Value:
    """A vector of these lanes."""
    first = scalars[0]
    vector = ir.Constant(lanes(first.type, len(scalars)), ir.Undefined)
    for index, scalar in enumerate(scalars):
        vector = first.builder.insert_element(vector, scalar.ir, I32(index))
    return Value(first.builder, vector)


class Pointer:
    """An address in bytes."""

    __slots__ = ("builder", "ir")

    def __init__(self, builder: ir.IRBuilder, value: ir.Value) -> None:
        self.builder = builder
        self.ir = value

    def at(self, offset: Value | int) -> Pointer:
        """The address `offset` bytes further."""
        index = offset.ir if isinstance(offset, Value) else I64(offset)
        return Pointer(self.builder, self.builder.gep(self.ir, [index], source_etype=I8))

    def load(self, kind: ir.Type) -> Value:
        """Reads one value; any alignment."""
        return Value(self.builder, self.builder.load(self.ir, align=1, typ=kind))

    def prefetch(self) -> None:
        """Asks for the cache line at this address, which need not be valid, to be read soon."""
        kinds = [PTR, I32, I32, I32]
        function = intrinsic(self.builder, "llvm.prefetch.p0", ir.VoidType(), kinds)
        # To be read, wanted in every cache level, data.
        self.builder.call(function, [self.ir, I32(0), I32(3), I32(1)])

    def store(self, value: Value) -> None:
        """Writes one value; any alignment."""
        self.builder.store(value.ir, self.ir, align=1)
