"""compressed-tensors: the scales from minima and maxima, then the compressor of the format."""

from collections.abc import Callable

from compressed_tensors.compressors import (
    MXFP8QuantizationCompressor,
    NaiveQuantizationCompressor,
    NVFP4PackedCompressor,
)
from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from torch import Tensor


def _scheme(preset: str) -> QuantizationScheme:
    return preset_name_to_scheme(preset, ["Linear"])


def _in_groups(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    groups = x.view(x.shape[0], -1, size)
    return groups.amin(-1), groups.amax(-1)


def operations(x: Tensor) -> dict[str, Callable[[], object]]:
    """By format."""
    nvfp4, mxfp8, block, tensor = map(_scheme, ("NVFP4A16", "MXFP8A16", "FP8_BLOCK", "FP8"))

    def to_nvfp4() -> object:
        whole = generate_gparam(x.min(), x.max())
        scale, _ = calculate_qparams(*_in_groups(x, 16), nvfp4.weights, whole)
        state = {"weight": x, "weight_scale": scale, "weight_global_scale": whole}
        return NVFP4PackedCompressor.compress(state, nvfp4)

    def to_mxfp8() -> object:
        scale, _ = calculate_qparams(*_in_groups(x, 32), mxfp8.weights)
        return MXFP8QuantizationCompressor.compress({"weight": x, "weight_scale": scale}, mxfp8)

    def to_block() -> object:
        tiles = x.view(x.shape[0] // 128, 128, x.shape[1] // 128, 128)
        scale, _ = calculate_qparams(tiles.amin((1, 3)), tiles.amax((1, 3)), block.weights)
        return NaiveQuantizationCompressor.compress({"weight": x, "weight_scale": scale}, block)

    def to_tensor() -> object:
        scale, _ = calculate_qparams(x.min(), x.max(), tensor.weights)
        return NaiveQuantizationCompressor.compress({"weight": x, "weight_scale": scale}, tensor)

    return {
        "nvfp4": to_nvfp4,
        "mxfp8": to_mxfp8,
        "fp8_128x128": to_block,
        "fp8_tensor": to_tensor,
    }
