"""DeepSeek's FP8 checkpoint: blocks of 128x128, the one layout that all engines load today."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from typing_extensions import override

from qrole.checkpoint.config_text import with_key
from qrole.checkpoint.layers import Layer, Selection
from qrole.checkpoint.layouts.base import Layout, Part, block_scales, codes
from qrole.checkpoint.schemes import Scheme
from qrole.checkpoint.source import Source
from qrole.errors import ConfigError

__all__ = ["Fp8Block"]


class Fp8Block(Layout):
    """`quant_method: fp8`: `weight` and `weight_scale_inv`, which is a multiplier all the same."""

    name: ClassVar[str] = "fp8-block"
    schemes: ClassVar[frozenset[str]] = frozenset({"fp8_block"})
    single_scheme: ClassVar[bool] = True
    block_rows: ClassVar[bool] = True

    @override
    def parts(self, layer: Layer) -> tuple[Part, ...]:
        base = layer.module
        data = codes(f"{base}.weight", "F8_E4M3", layer)
        return (data, block_scales(f"{base}.weight_scale_inv", layer))

    @override
    def codes_name(self, module: str, scheme: Scheme) -> str:
        return f"{module}.weight"

    @override
    def documents(self, selection: Selection, source: Source) -> dict[str, str]:
        quantization: dict[str, Any] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": _kept(selection),
        }
        if all(layer.weight.power_of_two for layer in selection.layers.values()):
            quantization["scale_fmt"] = "ue8m0"
        text = source.config_text if source.config_text is not None else "{}\n"
        return {"config.json": with_key(text, "quantization_config", quantization)}


def _kept(selection: Selection) -> list[str]:
    """Full names; transformers takes them for patterns that names begin with."""
    kept = [m for m in selection.modules if m not in selection.layers]
    for name in kept:
        wide = next((m for m in selection.layers if re.match(name, m)), None)
        if wide is not None:
            raise ConfigError(
                f"{name} stays in high precision, and {wide}, which does not, begins with its "
                "name: transformers would leave both out",
                expected="names that do not begin with each other",
                hint="choose the layout compressed-tensors",
            )
    return kept
