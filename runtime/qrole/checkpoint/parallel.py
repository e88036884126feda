"""Over how many GPUs a checkpoint's layers can be split without cutting a block of scales."""

from __future__ import annotations

from collections.abc import Collection

from qrole.checkpoint.layers import Layer

__all__ = ["largest_split"]

#: Layers that engines split along the input; all others are split along the output.
_ROW_PARALLEL = ("o_proj", "down_proj", "w2", "wo", "out_proj", "dense", "fc2", "c_proj")


def largest_split(layers: Collection[Layer]) -> tuple[int, str]:
    """The largest of 8, 4, 2 and 1 that splits all layers, and a layer that 8 would cut wrongly.

    Returns:
        The number, and the layer's name; `""` where 8 fits.
    """
    shapes = {(la.rows, la.columns, la.scheme.encoding): la for la in layers}
    if all(_fits(la, 8, along) for la in shapes.values() for along in (True, False)):
        return 8, ""
    kinds = {
        (la.module.rpartition(".")[2], la.rows, la.columns, la.scheme.encoding): la for la in layers
    }
    cut = [layer for layer in kinds.values() if not _fits(layer, 8, _row_parallel(layer))]
    if not cut:
        return 8, ""
    sizes = (s for s in (4, 2) if all(_fits(layer, s, _row_parallel(layer)) for layer in cut))
    return next(sizes, 1), cut[0].module


def _row_parallel(layer: Layer) -> bool:
    return layer.module.rpartition(".")[2] in _ROW_PARALLEL


def _fits(layer: Layer, size: int, along_input: bool) -> bool:
    stored = layer.scheme.stored
    if along_input:
        return layer.columns % (size * max(stored.scale_columns, 1)) == 0
    return layer.rows % (size * (128 if stored.name == "fp8_block" else 1)) == 0
