"""Emitter for modules that speak of roles themselves: qrole's own, TransformerEngine's, anyone's.

What such a module says is believed. qrole's modules also tell which GEMM reads a slot
(`quantizer_slots`); for others that follows from the role's tensor type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from qrole.emitters.base import EmitOptions, Emitter, class_name
from qrole.roles import Direction, QuantizerRole, Slot

if TYPE_CHECKING:
    from torch import nn

__all__ = ["RoleEmitter"]

_MODES = ((Direction.FORWARD, 3), (Direction.BACKWARD, 2))
_BOUNDARY = {Direction.FORWARD: "output", Direction.BACKWARD: "grad_input"}


class RoleEmitter(Emitter):
    """Any module with `get_quantizer_roles`, of TransformerEngine's module or op signature."""

    name: ClassVar[str] = "own roles"
    priority: ClassVar[int] = 100

    def slots(self, path: str, module: nn.Module, options: EmitOptions) -> list[Slot] | None:
        """The module's slots; None where it has no `get_quantizer_roles`."""
        if not callable(getattr(module, "get_quantizer_roles", None)):
            return None
        own: Any = module
        if callable(getattr(own, "quantizer_slots", None)):
            slots: list[Slot] = own.quantizer_slots(path)
            return slots
        slots = []
        for direction, per_gemm in _MODES:
            roles, bare = _roles(own, direction, per_gemm)
            slots += [
                Slot(
                    module=path,
                    direction=direction,
                    index=index,
                    role=role,
                    module_class=class_name(module),
                    te_name=str(getattr(own, "name", "") or ""),
                    operand=_operand(role, direction),
                    consumed=role is not None,
                    shape=_shape(own, role),
                    parameters=_parameters(own, path, role),
                    bare=bare,
                )
                for index, role in enumerate(roles)
            ]
        return slots


def _roles(
    module: Any, direction: Direction, per_gemm: int
) -> tuple[list[QuantizerRole | None], bool]:
    """The roles of one direction, and whether they stand in for a missing list."""
    if callable(getattr(module, "num_quantizers", None)):
        count = int(module.num_quantizers(direction.value))
        roles = module.get_quantizer_roles(direction.value)
    else:
        count = int(getattr(module, "num_gemms", 1)) * per_gemm
        forward = direction is Direction.FORWARD
        roles = module.get_quantizer_roles(fwd=forward, num_quantizers=count)
    if roles is None:
        return [QuantizerRole()] * count, True
    return [_own_role(role) for role in roles], False


def _own_role(role: Any) -> QuantizerRole | None:
    if role is None or isinstance(role, QuantizerRole):
        return role
    return QuantizerRole(str(role.module_type), str(role.tensor_type), str(role.name))


def _operand(role: QuantizerRole | None, direction: Direction) -> str:
    return _BOUNDARY[direction] if role is None else role.tensor_type


def _is_weight(module: Any, role: QuantizerRole | None) -> bool:
    weight = getattr(module, "weight", None)
    return role is not None and role.tensor_type == "weight" and getattr(weight, "ndim", 0) == 2


def _shape(module: Any, role: QuantizerRole | None) -> tuple[int, ...] | None:
    return tuple(module.weight.shape) if _is_weight(module, role) else None


def _parameters(module: Any, path: str, role: QuantizerRole | None) -> tuple[str, ...]:
    if not _is_weight(module, role):
        return ()
    return (f"{path}.weight" if path else "weight",)
