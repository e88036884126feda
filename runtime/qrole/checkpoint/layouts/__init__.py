"""Layouts of written checkpoints, by name."""

from __future__ import annotations

from qrole.checkpoint.layouts.base import Content, Layout, Part
from qrole.checkpoint.layouts.compressed_tensors import CompressedTensors

__all__ = ["LAYOUTS", "CompressedTensors", "Content", "Layout", "Part"]

LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in (CompressedTensors(),)}
