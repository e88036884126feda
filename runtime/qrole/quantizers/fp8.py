"""FP8 with one scale per tensor: current scaling, and delayed scaling with a stored scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from qrole.dtypes import DType, fp8_element
from qrole.quantizers.base import OperandFormat, Quantizer
from qrole.quantizers.reduction import reduce_amax
from qrole.quantizers.tensor import Representation
from qrole.roles import Usage

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from qrole_kernels.operand import Operand

__all__ = ["Float8CurrentScalingQuantizer", "Float8Quantizer"]

_FLOAT32_MAX = float.fromhex("0x1.fffffep+127")


class _PerTensor(Quantizer):
    """One quantization serves both directions: column-wise data are the bytes, seen transposed."""

    dtype: DType

    @property
    def element(self) -> str:
        """`e4m3` or `e5m2`."""
        return fp8_element(self.dtype)

    @property
    def fp8_dtype(self) -> DType:
        """The constructor's keyword for `dtype`."""
        return self.dtype

    @property
    @override
    def columnwise_format(self) -> OperandFormat:
        return self.rowwise_format

    def _pair(
        self, codes_MK: torch.Tensor, scale_inv: torch.Tensor, amax: torch.Tensor | None
    ) -> tuple[Representation | None, Representation | None]:
        rowwise = Representation(codes_MK, scale_inv, amax) if self.rowwise_usage else None
        if not self.columnwise_usage:
            return rowwise, None
        return rowwise, Representation(codes_MK.t(), scale_inv, amax)

    @override
    def decode(
        self, data: Representation, usage: Usage, shape: tuple[int, int], dtype: torch.dtype
    ) -> torch.Tensor:
        from qrole_kernels import ops

        assert data.scale_inv is not None, "FP8 data has a scale"
        codes_MK = data.data if usage is Usage.ROWWISE else data.data.t()
        return ops.dequantize_fp8(codes_MK, data.scale_inv, self.element, dtype)

    @override
    def operand(self, data: Representation, usage: Usage, shape: tuple[int, int]) -> Operand:
        from qrole_kernels.operand import Operand

        return Operand("fp8_tensor", data.data, data.scale_inv, element=self.element)


class Float8CurrentScalingQuantizer(_PerTensor):
    """FP8 with the scale of the tensor's own amax.

    Args:
        fp8_dtype: E4M3 or E5M2.
        device: Accepted as TransformerEngine requires it; has no meaning, the data stays where
            the tensor is.
        rowwise: Make row-wise data.
        columnwise: Make column-wise data, the transposed bytes.
        use_existing_amax: Deprecated in TransformerEngine; accepted and ignored.
        with_amax_reduction: Take the amax over the ranks of a group.
        amax_reduction_group: That group; the default group where None.
        force_pow_2_scales: Round the scale down to a power of two.
        amax_epsilon: Floor of the amax, >= 0.
        scale: Deprecated in TransformerEngine; accepted and ignored.
        amax: Likewise.
    """

    options: ClassVar[tuple[str, ...]] = (
        "fp8_dtype",
        "with_amax_reduction",
        "force_pow_2_scales",
        "amax_epsilon",
    )

    def __init__(
        self,
        fp8_dtype: DType,
        device: torch.device | str,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        use_existing_amax: bool = False,
        with_amax_reduction: bool = False,
        amax_reduction_group: dist.ProcessGroup | None = None,
        force_pow_2_scales: bool = False,
        amax_epsilon: float = 0.0,
        scale: torch.Tensor | None = None,
        amax: torch.Tensor | None = None,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = DType.cast(fp8_dtype)
        fp8_element(self.dtype)
        self.with_amax_reduction = with_amax_reduction
        self.amax_reduction_group = amax_reduction_group
        self.force_pow_2_scales = force_pow_2_scales
        self.amax_epsilon = amax_epsilon

    @property
    @override
    def rowwise_format(self) -> OperandFormat:
        scale = "fp32_pow2" if self.force_pow_2_scales else "fp32"
        return OperandFormat("fp8_tensor", self.element, scale=scale)

    @property
    @override
    def label(self) -> str:
        return f"FP8 current {self.element.upper()}{' pow2' if self.force_pow_2_scales else ''}"

    @override
    def encode(
        self, x_MK: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[Representation | None, Representation | None]:
        from qrole_kernels import ops

        pow2, epsilon = self.force_pow_2_scales, self.amax_epsilon
        if self.with_amax_reduction:
            amax = reduce_amax(ops.amax(x_MK), self.amax_reduction_group)
            scale = ops.fp8_scale(amax, self.element, pow2, epsilon, _FLOAT32_MAX)
            codes_MK, scale_inv = ops.quantize_fp8(x_MK, scale, self.element), 1.0 / scale
        else:
            codes_MK, _, scale_inv, amax = ops.quantize_fp8_current(
                x_MK, self.element, pow2, epsilon
            )
        return self._pair(codes_MK, scale_inv, amax)


class Float8Quantizer(_PerTensor):
    """FP8 with a stored scale: delayed scaling.

    Args:
        scale: fp32 scalar, a view into the state's buffer; read at every call.
        amax: fp32 scalar, a view into the amax history; raised to the amax of every tensor seen.
        fp8_dtype: E4M3 or E5M2.
        rowwise: Make row-wise data.
        columnwise: Make column-wise data, the transposed bytes.
    """

    options: ClassVar[tuple[str, ...]] = ("fp8_dtype",)

    def __init__(
        self,
        scale: torch.Tensor,
        amax: torch.Tensor,
        fp8_dtype: DType,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.scale = scale
        self.amax = amax
        self.dtype = DType.cast(fp8_dtype)
        fp8_element(self.dtype)

    @property
    @override
    def rowwise_format(self) -> OperandFormat:
        return OperandFormat("fp8_tensor", self.element, scale="fp32", delayed=True)

    @property
    @override
    def label(self) -> str:
        return f"FP8 delayed {self.element.upper()}"

    @override
    def calibrate(self, tensor: torch.Tensor) -> None:
        """Records the amax of a tensor without quantizing it."""
        import torch

        from qrole_kernels import ops

        seen = ops.amax(tensor.detach().reshape(-1, tensor.shape[-1])).to(self.amax.device)
        self.amax.copy_(torch.fmax(self.amax, seen.reshape(self.amax.shape)))

    @override
    def encode(
        self, x_MK: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[Representation | None, Representation | None]:
        from qrole_kernels import ops

        self.calibrate(x_MK)
        scale = self.scale.detach().reshape(()).to(x_MK.device)
        codes_MK = ops.quantize_fp8(x_MK, scale, self.element)
        return self._pair(codes_MK, 1.0 / scale, None)
