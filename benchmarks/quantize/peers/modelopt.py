"""nvidia-modelopt."""

from collections.abc import Callable

from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP8QTensor, NVFP4QTensor
from torch import Tensor


def operations(x: Tensor) -> dict[str, Callable[[], object]]:
    """By format."""
    return {
        "nvfp4": lambda: NVFP4QTensor.quantize(x, 16),
        "mxfp8": lambda: MXFP8QTensor.quantize(x),
        "fp8_128x128": lambda: FP8QTensor.quantize(x, block_sizes={-1: 128, -2: 128}),
        "fp8_tensor": lambda: FP8QTensor.quantize(x),
    }
