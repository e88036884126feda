"""compressed-tensors: what vLLM, SGLang and transformers load, mixed precision included."""

from __future__ import annotations

from typing import Any, ClassVar

from typing_extensions import override

from qrole.checkpoint.config_text import with_key
from qrole.checkpoint.layers import Layer, Selection
from qrole.checkpoint.layouts.base import Content, Layout, Part, block_scales, codes
from qrole.checkpoint.schemes import SCHEMES, Activations, Scheme
from qrole.checkpoint.source import Source
from qrole.checkpoint.targets import patterns

__all__ = ["CompressedTensors", "group_of", "quantization"]

_FORMATS = {
    "fp8_tensor": "float-quantized",
    "fp8_channel": "float-quantized",
    "fp8_block": "float-quantized",
    "nvfp4": "nvfp4-pack-quantized",
    "mxfp8": "mxfp8-quantized",
    "mxfp4": "mxfp4-pack-quantized",
}

# Readers reject unknown keys inside these objects, so nothing is added to them.
_WEIGHTS: dict[str, dict[str, Any]] = {
    "fp8_tensor": {"num_bits": 8, "strategy": "tensor"},
    "fp8_channel": {"num_bits": 8, "strategy": "channel"},
    "fp8_block": {"num_bits": 8, "strategy": "block", "block_structure": [128, 128]},
    "nvfp4": {
        "num_bits": 4,
        "strategy": "tensor_group",
        "group_size": 16,
        "scale_dtype": "torch.float8_e4m3fn",
    },
    "mxfp8": {"num_bits": 8, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
    "mxfp4": {"num_bits": 4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
}


class CompressedTensors(Layout):
    """`quant_method: compressed-tensors`, every group with its own format and disjoint targets."""

    name: ClassVar[str] = "compressed-tensors"
    schemes: ClassVar[frozenset[str]] = frozenset(SCHEMES)

    @override
    def parts(self, layer: Layer) -> tuple[Part, ...]:
        """Scales of one number have shape [1]; a scalar shape is refused by transformers."""
        base, encoding = layer.module, layer.scheme.encoding
        dtype = "U8" if layer.scheme.stored.element_bits == 4 else "F8_E4M3"
        parts = [codes(self.codes_name(base, layer.scheme), dtype, layer)]
        if encoding == "fp8_tensor":
            parts.append(_number(f"{base}.weight_scale", Content.WEIGHT_MULTIPLIER))
        else:
            parts.append(block_scales(f"{base}.weight_scale", layer))
        if encoding == "nvfp4":
            parts.append(_number(f"{base}.weight_global_scale", Content.WEIGHT_DIVISOR))
        if layer.scheme.activations is Activations.STATIC:
            nvfp4 = encoding == "nvfp4"
            name = "input_global_scale" if nvfp4 else "input_scale"
            content = Content.INPUT_DIVISOR if nvfp4 else Content.INPUT_MULTIPLIER
            parts.append(_number(f"{base}.{name}", content))
        return tuple(parts)

    @override
    def codes_name(self, module: str, scheme: Scheme) -> str:
        """`weight_packed` where two codes share a byte."""
        packed = scheme.stored.element_bits == 4
        return f"{module}.weight_packed" if packed else f"{module}.weight"

    @override
    def documents(self, selection: Selection, source: Source) -> dict[str, str]:
        """config.json with `quantization_config`."""
        text = source.config_text if source.config_text is not None else "{}\n"
        return {"config.json": with_key(text, "quantization_config", quantization(selection))}


def _number(name: str, content: Content) -> Part:
    return Part(name, "F32", (1,), content)


def quantization(selection: Selection) -> dict[str, Any]:
    """The `quantization_config` of a selection."""
    groups: dict[str, Any] = {}
    for name, layers in selection.schemes().items():
        chosen = patterns((layer.module for layer in layers), selection.modules)
        groups[f"group_{len(groups)}"] = group_of(name, list(chosen))
    formats = {group["format"] for group in groups.values()}
    kept = set(selection.modules) - selection.layers.keys()
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "config_groups": groups,
        "ignore": list(patterns(kept, selection.modules)),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
        "version": "0.17.0",
    }


def group_of(scheme_name: str, targets: list[str]) -> dict[str, Any]:
    """The config group of a scheme."""
    scheme = SCHEMES[scheme_name]
    weights = _arguments(_WEIGHTS[scheme.encoding], dynamic=False)
    return {
        "format": _FORMATS[scheme.encoding],
        "targets": targets,
        "weights": weights,
        "input_activations": _activations(scheme_name),
        "output_activations": None,
    }


def _activations(scheme_name: str) -> dict[str, Any] | None:
    scheme = SCHEMES[scheme_name]
    if scheme.activations is Activations.NONE:
        return None
    if scheme.encoding == "nvfp4":
        return _arguments(_WEIGHTS["nvfp4"], dynamic="local")
    if scheme.encoding == "fp8_block":
        group = {"num_bits": 8, "strategy": "group", "group_size": 128}
        return _arguments(group, dynamic=True)
    if scheme.encoding in ("mxfp8", "mxfp4"):
        return _arguments(_WEIGHTS[scheme.encoding], dynamic=True)
    if scheme.activations is Activations.STATIC:
        return _arguments(_WEIGHTS["fp8_tensor"], dynamic=False)
    return _arguments({"num_bits": 8, "strategy": "token"}, dynamic=True)


def _arguments(own: dict[str, Any], dynamic: bool | str) -> dict[str, Any]:
    return {"type": "float", "symmetric": True, "dynamic": dynamic, **own}
