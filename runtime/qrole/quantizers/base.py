"""What every quantizer is: a frozen description of a number format that can be applied.

No quantizer module imports torch when it is imported; the data-free checkpoint path needs that.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

from qrole.errors import OperandError
from qrole.quantizers.operand_format import OperandFormat
from qrole.quantizers.tensor import QuantizedTensor, Representation

if TYPE_CHECKING:
    import torch

    from qrole.roles import Usage
    from qrole_kernels.operand import Operand

__all__ = ["OperandFormat", "Quantizer"]


class Quantizer:
    """A number format with its options, for the row-wise and the column-wise representation.

    Options are fixed at construction and equality is by class and options. Usage flags
    (`rowwise_usage`, `columnwise_usage`) say which representations `quantize` makes; modules set
    them per pass as TransformerEngine's do, and they take no part in equality.

    Shapes that a format's hardware refuses (sizes that are no multiple of the block) are
    quantized all the same, missing elements counting as zero; `qrole audit` reports them.

    qrole's own classes override `encode`, `decode` and `operand`. A class written for
    TransformerEngine overrides `quantize` or `quantize_impl`; its format is `custom` and products
    of its data are left to its own `qgemm`.

    Attributes:
        rowwise_usage: `quantize` makes row-wise data.
        columnwise_usage: `quantize` makes column-wise data.
        internal: Accepted for TransformerEngine's modules; has no meaning here.
        optimize_for_gemm: Likewise.
    """

    #: Names of the constructor keywords that identify the quantizer, in display order.
    options: ClassVar[tuple[str, ...]] = ()

    rowwise_usage: bool
    columnwise_usage: bool
    internal: bool
    optimize_for_gemm: bool

    def __init__(self, *, rowwise: bool, columnwise: bool) -> None:
        self.rowwise_usage = rowwise
        self.columnwise_usage = columnwise
        self.internal = False
        self.optimize_for_gemm = False

    @property
    def rowwise_format(self) -> OperandFormat:
        """Format of the data that fprop (input, weight) and dgrad (grad_output) read."""
        return OperandFormat("custom", type(self).__name__)

    @property
    def columnwise_format(self) -> OperandFormat:
        """Format of the data that dgrad (weight) and wgrad (input, grad_output) read."""
        return OperandFormat("custom", type(self).__name__)

    @property
    def label(self) -> str:
        """A short name for tables: `MXFP8 E4M3`, `NVFP4 RHT SR`; equal quantizers share it."""
        return type(self).__name__

    def check(self) -> None:
        """Checks that the options do not exclude each other; `quantize` calls it.

        TransformerEngine builds such quantizers and fails when they are first used, so that one in
        a slot that nothing reads does no harm.

        Raises:
            ConfigError: They exclude each other.
        """

    def calibrate(self, tensor: torch.Tensor) -> None:
        """Records what later steps quantize with; only delayed scaling keeps such state."""

    def encode(
        self, x_MK: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[Representation | None, Representation | None]:
        """Makes the representations that the usage flags ask for.

        Args:
            x_MK: fp32, bf16 or fp16 matrix.
            generator: Random bits for stochastic rounding; None draws from torch's default.

        Returns:
            Row-wise and column-wise data.
        """
        raise _unwritten(self, "encode")

    def decode(
        self,
        data: Representation,
        usage: Usage,
        shape: tuple[int, int],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """The matrix (M, K) that a representation made by `encode` stands for.

        Args:
            data: The representation.
            usage: Which of the two it is.
            shape: (M, K).
            dtype: Of the result; the arithmetic is fp32, rounded once.
        """
        raise _unwritten(self, "decode")

    def operand(self, data: Representation, usage: Usage, shape: tuple[int, int]) -> Operand:
        """A representation as a GEMM reads it, the dimension that is summed over last.

        Row-wise (M, K); column-wise (K, M), still transformed where the format transforms it.
        """
        raise _unwritten(self, "operand")

    def quantize_impl(self, tensor: torch.Tensor) -> Any:
        """What a quantizer class written for TransformerEngine overrides."""
        raise _unwritten(self, "quantize_impl")

    def quantize(
        self,
        tensor: torch.Tensor | QuantizedTensor,
        *,
        out: QuantizedTensor | None = None,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
    ) -> QuantizedTensor:
        """Quantizes a tensor of shape (..., K), seen as (M, K).

        Args:
            tensor: fp32, bf16 or fp16; a quantized one is dequantized first.
            out: Written in place and returned, where given; decides which data is made.
            dtype: What `dequantize` gives back; the tensor's own dtype where None.
            generator: Random bits for stochastic rounding; None draws from torch's default.

        Raises:
            OperandError: The tensor is of another dtype, or a usage asks for no data at all.
        """
        if isinstance(tensor, QuantizedTensor):
            tensor = tensor.dequantize()
        if out is not None:
            return self.update_quantized(tensor, out)
        self.check()
        if type(self).encode is Quantizer.encode:
            made: QuantizedTensor = self.quantize_impl(tensor)
            return made
        if not (self.rowwise_usage or self.columnwise_usage):
            raise OperandError(
                f"{self!r} is to make neither row-wise nor column-wise data",
                expected="at least one usage switched on",
                hint="call set_usage(rowwise=True)",
            )
        rowwise, columnwise = self.encode(_as_matrix(tensor), generator)
        return QuantizedTensor(tensor.shape, dtype or tensor.dtype, self, rowwise, columnwise)

    def __call__(self, tensor: torch.Tensor | QuantizedTensor) -> QuantizedTensor:
        """Same as `quantize`, as TransformerEngine's quantizers are called."""
        return self.quantize(tensor)

    def update_quantized(
        self,
        src: torch.Tensor,
        dst: QuantizedTensor,
        *,
        noop_flag: torch.Tensor | None = None,
    ) -> QuantizedTensor:
        """Quantizes `src` into the buffers of `dst`, whose representations decide what is made.

        Args:
            src: Tensor of the shape of `dst`.
            dst: Written in place.
            noop_flag: Leaves `dst` as it is where it holds a non-zero number.
        """
        if noop_flag is not None and bool(noop_flag):
            return dst
        quantizer = self.copy()
        quantizer.set_usage(rowwise=dst.rowwise is not None, columnwise=dst.columnwise is not None)
        made = quantizer.quantize(src)
        for old, new in ((dst.rowwise, made.rowwise), (dst.columnwise, made.columnwise)):
            for name in ("data", "scale_inv", "amax"):
                target, source = getattr(old, name, None), getattr(new, name, None)
                if target is not None and source is not None:
                    target.copy_(source)
        return dst

    def make_empty(
        self,
        shape: torch.Size | tuple[int, ...] | list[int],
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> QuantizedTensor:
        """A quantized tensor of zeros, to be written by `update_quantized`.

        Args:
            shape: Shape before quantization.
            dtype: Nominal dtype; fp32 where None.
            device: Where the data lives; the CPU where None, or where CUDA is named and missing.
        """
        import torch

        device = torch.device(device or "cpu")
        if device.type == "cuda" and not torch.cuda.is_available():
            device = torch.device("cpu")
        return self.quantize(torch.zeros(shape, dtype=dtype or torch.float32, device=device))

    def set_usage(self, *, rowwise: bool | None = None, columnwise: bool | None = None) -> None:
        """Changes which representations `quantize` makes; None leaves a flag as it is."""
        if rowwise is not None:
            self.rowwise_usage = rowwise
        if columnwise is not None:
            self.columnwise_usage = columnwise

    def copy(self) -> Self:
        """A quantizer of equal options whose usage flags are its own."""
        return copy.copy(self)

    def describe(self) -> dict[str, Any]:
        """The class name and the options as JSON values: what plans and manifests record."""
        return {
            "quantizer": type(self).__name__,
            **{k: _plain(getattr(self, k)) for k in self._option_names()},
        }

    def _option_names(self) -> tuple[str, ...]:
        """`options`; the public attributes of a class that names none, such as a user's own."""
        state = {"rowwise_usage", "columnwise_usage", "internal", "optimize_for_gemm"}
        return self.options or tuple(
            name for name in sorted(vars(self)) if not name.startswith("_") and name not in state
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quantizer):
            return NotImplemented
        return type(self) is type(other) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash((type(self), repr(self.describe())))

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={_shown(getattr(self, name))}" for name in self._option_names())
        return f"{type(self).__name__}({inner})"


def _unwritten(quantizer: Quantizer, method: str) -> OperandError:
    name = type(quantizer).__name__
    return OperandError(
        f"the quantizer class {name} has no method {method}",
        expected="encode, decode and operand, or quantize_impl as TransformerEngine calls it",
        hint=f"write {method} for {name}",
    )


def _as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor (..., K) as (M, K), outside of autograd."""
    if tensor.dtype.itemsize > 4 or not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
        raise OperandError(
            f"a tensor of {tensor.dtype}",
            expected="float32, bfloat16 or float16",
            hint="convert it before it is quantized",
        )
    columns = tensor.shape[-1] if tensor.dim() else 1
    rows = tensor.numel() // columns if columns else tensor.shape[:-1].numel()
    return tensor.detach().reshape(rows, columns)


def _plain(value: Any) -> Any:
    """A constructor option as a JSON value; enum members and dtypes become their names."""
    if isinstance(value, Quantizer):
        return value.describe()
    if value is None or type(value) in (bool, int, float, str):
        return value
    return str(getattr(value, "name", value))


def _shown(value: Any) -> str:
    name = getattr(value, "name", None)
    return f"{type(value).__name__}.{name}" if isinstance(name, str) else repr(value)
