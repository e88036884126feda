"""torchao."""

from collections.abc import Callable

import torch
from torch import Tensor
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
from torchao.quantization import Float8Tensor
from torchao.quantization.granularity import PerBlock, PerTensor


def operations(x: Tensor) -> dict[str, Callable[[], object]]:
    """By format."""

    def nvfp4() -> object:
        scale = per_tensor_amax_to_scale(x.abs().max())
        return NVFP4Tensor.to_nvfp4(x, per_tensor_scale=scale)

    return {
        "nvfp4": nvfp4,
        "mxfp8": lambda: to_mx(x, torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL),
        "fp8_128x128": lambda: Float8Tensor.from_hp(x, granularity=PerBlock([128, 128])),
        "fp8_tensor": lambda: Float8Tensor.from_hp(x, granularity=PerTensor()),
    }
