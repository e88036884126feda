"""Layouts of written checkpoints, by name."""

from __future__ import annotations

from qrole.checkpoint.layouts.base import Content, Layout, Part
from qrole.checkpoint.layouts.compressed_tensors import CompressedTensors
from qrole.checkpoint.layouts.fp8_block import Fp8Block
from qrole.checkpoint.layouts.modelopt import ModelOpt
from qrole.checkpoint.layouts.native import Native

__all__ = [
    "LAYOUTS",
    "CompressedTensors",
    "Content",
    "Fp8Block",
    "Layout",
    "ModelOpt",
    "Native",
    "Part",
]

LAYOUTS: dict[str, Layout] = {
    layout.name: layout for layout in (CompressedTensors(), ModelOpt(), Fp8Block(), Native())
}
