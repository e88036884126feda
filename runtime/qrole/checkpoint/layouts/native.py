"""qrole's own layout: row-wise and column-wise data, every scale and amax, of any quantizer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import ClassVar

from typing_extensions import override

from qrole.checkpoint.layers import Layer, Selection
from qrole.checkpoint.layouts.base import Content, Layout, Part
from qrole.checkpoint.native.shapes import stored_parts
from qrole.checkpoint.native.weights import METADATA, NativeWeight
from qrole.checkpoint.schemes import Scheme
from qrole.checkpoint.source import Source
from qrole.errors import UsageError

__all__ = ["Native", "native_parts"]


class Native(Layout):
    """Lossless; no engine reads it. The files' metadata say which quantizer made each weight."""

    name: ClassVar[str] = "native"
    schemes: ClassVar[frozenset[str]] = frozenset()
    own_quantizers: ClassVar[bool] = True

    @override
    def parts(self, layer: Layer) -> tuple[Part, ...]:
        assert layer.native is not None, "selected for this layout"
        return native_parts(layer.module, layer.native, layer.rows, layer.columns)

    @override
    def codes_name(self, module: str, scheme: Scheme) -> str:
        return f"{module}.weight.{Content.ROWWISE_DATA}"

    @override
    def documents(self, selection: Selection, source: Source) -> dict[str, str]:
        """config.json as it is.

        Raises:
            UsageError: It declares a quantization, which would not be true of the output.
        """
        if source.config.get("quantization_config"):
            raise UsageError(
                f"the config.json of {source.name} declares a quantization",
                expected="fp32, bf16 or fp16 weights: this layout leaves config.json as it is",
                hint="start from the checkpoint before it was quantized, or choose another layout",
            )
        return {} if source.config_text is None else {"config.json": source.config_text}

    @override
    def metadata(self, layers: Iterable[Layer]) -> dict[str, str]:
        records = {la.module: la.native.to_json(la.rows, la.columns) for la in layers if la.native}
        return {METADATA: json.dumps(records, separators=(",", ":"))} if records else {}


def native_parts(module: str, weight: NativeWeight, rows: int, columns: int) -> tuple[Part, ...]:
    """The stored tensors of a weight of that shape."""
    return tuple(
        Part(f"{module}.weight.{name}", dtype, shape, Content(name))
        for name, dtype, shape in stored_parts(weight.quantizer, weight.dtype, rows, columns)
    )
