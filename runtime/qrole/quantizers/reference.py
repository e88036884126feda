"""TransformerEngine's Python references by name, with the arithmetic of its kernels.

They differ from the references in values of no weight only: the sign of a zero, and tensors that
hold inf or NaN. As there, data of a reference multiplies with data of a reference only.
"""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from qrole.dtypes import DType
from qrole.errors import ConfigError
from qrole.quantizers.base import OperandFormat
from qrole.quantizers.fp8 import Float8CurrentScalingQuantizer
from qrole.quantizers.nvfp4 import NVFP4Quantizer

if TYPE_CHECKING:
    import torch

__all__ = ["CurrentScalingQuantizerRef", "Fp4Formats", "NVFP4QuantizerRef"]

_TILES = ((1, 16), (16, 16))


class Fp4Formats(Enum):
    """FP4 formats, of which there is one."""

    E2M1 = "e2m1"


class NVFP4QuantizerRef(NVFP4Quantizer):
    """The NVFP4 reference; `with_rht` takes the amax after the transform.

    Args:
        dtype: `Fp4Formats.E2M1`.
        rowwise: Make row-wise data.
        columnwise: Make column-wise data.
        pow_2_scales: False only; the reference fails with True as well.
        eps: Accepted and unused, as in the reference.
        quant_tile_shape: (1, 16), or (16, 16) for square blocks.
        row_scaled_nvfp4: As in `NVFP4Quantizer`, and likewise the next three.
        nvfp4_use_4over6: See above.
        nvfp4_e4m3_max: See above; 448 without 4over6.
        nvfp4_4over6_err_mode: See above, in either case.
        nvfp4_4over6_err_use_fast_math: Accepted; has no meaning.
        with_rht: Hadamard-transform the column-wise data.
        with_random_sign_mask: As in `NVFP4Quantizer`.
    """

    def __init__(
        self,
        dtype: Fp4Formats | DType,
        rowwise: bool = True,
        columnwise: bool = True,
        pow_2_scales: bool = False,
        eps: float = 0.0,
        quant_tile_shape: tuple[int, int] = (1, 16),
        row_scaled_nvfp4: bool = False,
        nvfp4_use_4over6: bool = False,
        nvfp4_e4m3_max: int = 448,
        nvfp4_4over6_err_mode: str = "MAE",
        nvfp4_4over6_err_use_fast_math: bool = False,
        with_rht: bool = False,
        with_random_sign_mask: bool = True,
    ) -> None:
        if pow_2_scales or tuple(quant_tile_shape) not in _TILES:
            raise ConfigError(
                f"NVFP4QuantizerRef(pow_2_scales={pow_2_scales}, "
                f"quant_tile_shape={quant_tile_shape})",
                expected="pow_2_scales=False and quant_tile_shape (1, 16) or (16, 16)",
                hint="use MXFP4Quantizer for power-of-two scales",
            )
        super().__init__(
            dtype if isinstance(dtype, DType) else DType.kFloat4E2M1,
            rowwise=rowwise,
            columnwise=columnwise,
            with_rht=with_rht,
            with_post_rht_amax=with_rht,
            with_2d_quantization=tuple(quant_tile_shape) == (16, 16),
            row_scaled_nvfp4=row_scaled_nvfp4,
            nvfp4_use_4over6=nvfp4_use_4over6,
            nvfp4_e4m3_max=nvfp4_e4m3_max if nvfp4_use_4over6 else 448,
            nvfp4_4over6_err_mode=nvfp4_4over6_err_mode.upper(),
            with_random_sign_mask=with_random_sign_mask,
        )

    @property
    @override
    def rowwise_format(self) -> OperandFormat:
        return dataclasses.replace(super().rowwise_format, reference=True)

    @property
    @override
    def columnwise_format(self) -> OperandFormat:
        return dataclasses.replace(super().columnwise_format, reference=True)

    @property
    @override
    def label(self) -> str:
        return f"{super().label} reference"


class CurrentScalingQuantizerRef(Float8CurrentScalingQuantizer):
    """The reference of FP8 current scaling.

    Args:
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        rowwise: Make row-wise data.
        columnwise: Make column-wise data.
        pow_2_scales: Round the scale down to a power of two.
        eps: Floor of the amax.
    """

    _ELEMENTS: ClassVar[dict[str, DType]] = {
        "torch.float8_e4m3fn": DType.kFloat8E4M3,
        "torch.float8_e5m2": DType.kFloat8E5M2,
    }

    def __init__(
        self,
        dtype: torch.dtype,
        rowwise: bool = True,
        columnwise: bool = True,
        pow_2_scales: bool = False,
        eps: float = 0.0,
    ) -> None:
        element = self._ELEMENTS.get(str(dtype))
        if element is None:
            raise ConfigError(
                f"CurrentScalingQuantizerRef(dtype={dtype})",
                expected=f"one of {', '.join(self._ELEMENTS)}",
                hint="pass one of the two",
            )
        super().__init__(
            element,
            device="cpu",
            rowwise=rowwise,
            columnwise=columnwise,
            force_pow_2_scales=pow_2_scales,
            amax_epsilon=eps,
        )

    @property
    @override
    def rowwise_format(self) -> OperandFormat:
        return dataclasses.replace(super().rowwise_format, reference=True)

    @property
    @override
    def label(self) -> str:
        return f"{super().label} reference"
