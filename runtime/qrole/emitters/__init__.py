"""From models to slots: emitters, and the walk that asks them."""

from qrole.emitters.base import EmitOptions, Emitter, class_name, linear_slots
from qrole.emitters.model import walk, walk_module
from qrole.emitters.tensors import walk_tensors

__all__ = [
    "EmitOptions",
    "Emitter",
    "class_name",
    "linear_slots",
    "walk",
    "walk_module",
    "walk_tensors",
]
