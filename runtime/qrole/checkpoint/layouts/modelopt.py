"""ModelOpt's unified checkpoint: what TensorRT-LLM takes, and vLLM and SGLang load too."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, ClassVar

from typing_extensions import override

from qrole._version import __version__
from qrole.checkpoint.config_text import with_key
from qrole.checkpoint.layers import Layer, Selection
from qrole.checkpoint.layouts.base import Content, Layout, Part, block_scales, codes
from qrole.checkpoint.schemes import Activations, Scheme
from qrole.checkpoint.source import Source
from qrole.errors import ConfigError

__all__ = ["ALGORITHMS", "ModelOpt"]

ALGORITHMS = {
    "fp8_tensor": "FP8",
    "fp8_channel": "FP8_PER_CHANNEL_PER_TOKEN",
    "fp8_block": "FP8_PB_WO",
    "nvfp4": "NVFP4",
    "nvfp4_a16": "W4A16_NVFP4",
    "mxfp8": "MXFP8",
}
_GROUP_SIZES = {"nvfp4": 16, "nvfp4_a16": 16, "mxfp8": 32}
# Readers tell these files by the producer's name.
_PRODUCER = {"name": "modelopt", "version": f"qrole {__version__}"}


class ModelOpt(Layout):
    """`quant_method: modelopt`, all scales multipliers, exact module names."""

    name: ClassVar[str] = "modelopt"
    schemes: ClassVar[frozenset[str]] = frozenset(ALGORITHMS)

    @override
    def parts(self, layer: Layer) -> tuple[Part, ...]:
        base, encoding = layer.module, layer.scheme.encoding
        dtype = "U8" if layer.scheme.stored.element_bits == 4 else "F8_E4M3"
        parts = [codes(f"{base}.weight", dtype, layer)]
        if encoding == "fp8_tensor":
            parts.append(Part(f"{base}.weight_scale", "F32", (), Content.WEIGHT_MULTIPLIER))
        else:
            parts.append(block_scales(f"{base}.weight_scale", layer, _scale_shape(layer)))
        if encoding == "nvfp4":
            parts.append(Part(f"{base}.weight_scale_2", "F32", (), Content.WEIGHT_MULTIPLIER))
        if layer.scheme.activations is Activations.STATIC:
            parts.append(Part(f"{base}.input_scale", "F32", (), Content.INPUT_MULTIPLIER))
        return tuple(parts)

    @override
    def codes_name(self, module: str, scheme: Scheme) -> str:
        return f"{module}.weight"

    @override
    def documents(self, selection: Selection, source: Source) -> dict[str, str]:
        """config.json, and hf_quant_config.json, which TensorRT-LLM believes before it."""
        algorithm, kept = _algorithm(selection), _excluded(selection)
        flat: dict[str, Any] = {"quant_method": "modelopt", **algorithm, "ignore": kept}
        nested = {**algorithm, "kv_cache_quant_algo": None, "exclude_modules": kept}
        legacy = {"producer": _PRODUCER, "quantization": nested}
        text = source.config_text if source.config_text is not None else "{}\n"
        config = with_key(text, "quantization_config", {**flat, "producer": _PRODUCER})
        return {
            "config.json": config,
            "hf_quant_config.json": json.dumps(legacy, indent=4) + "\n",
        }


def _scale_shape(layer: Layer) -> tuple[int, ...] | None:
    """ModelOpt's own shapes of the scales that others store as matrices."""
    rows, columns = layer.scheme.stored.scale_shape(layer.rows, layer.columns)
    if layer.scheme.encoding == "fp8_channel":
        return (rows,)
    return (rows, 1, columns, 1) if layer.scheme.encoding == "fp8_block" else None


def _algorithm(selection: Selection) -> dict[str, Any]:
    schemes = selection.schemes()
    if len(schemes) == 1:
        return _entry(next(iter(schemes)))
    layers = {module: _entry(la.scheme.name) for module, la in selection.layers.items()}
    return {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}


def _entry(scheme: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"quant_algo": ALGORITHMS[scheme]}
    if scheme in _GROUP_SIZES:
        entry["group_size"] = _GROUP_SIZES[scheme]
    return entry


def _excluded(selection: Selection) -> list[str]:
    """Full names of everything in high precision; vLLM also takes them for parts of names."""
    kept = [m for m in selection.modules if m not in selection.layers]
    for name in kept:
        wide = _containing(name, selection.layers)
        if wide is not None:
            raise ConfigError(
                f"{name} stays in high precision, and its name is part of {wide}, which does not: "
                "vLLM would leave both out",
                expected="names that are no part of each other",
                hint="choose the layout compressed-tensors",
            )
    return kept


def _containing(name: str, modules: Iterable[str]) -> str | None:
    return next((module for module in modules if name in module), None)
