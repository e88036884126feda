"""Emitter for modules that speak of roles themselves: qrole's own, TransformerEngine's, anyone's.

What such a module says is believed. qrole's modules also tell which GEMM reads a slot
(`quantizer_slots`); an installed TransformerEngine's are known by class; for others it follows from
the role's tensor type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from qrole.emitters.base import EmitOptions, Emitter, attention_operands
from qrole.modules.grouped_linear import fold_experts
from qrole.modules.slots import SlotFacts, describe_slots
from qrole.roles import Direction, QuantizerRole, Slot

if TYPE_CHECKING:
    from torch import nn

__all__ = ["RoleEmitter"]

_FORWARD, _BACKWARD = Direction.FORWARD, Direction.BACKWARD
_BOUNDARY = {_FORWARD: "output", _BACKWARD: "grad_input"}
# Slots of TransformerEngine's modules: per GEMM group three forward and two backward. Those of
# the boundary are read only where a quantized output is asked for, which the model does not tell.
_LAYER = {
    _FORWARD: (("input", True), ("weight", True), ("output", False)),
    _BACKWARD: (("grad_output", True), ("grad_input", False)),
}
_TE_GROUPS = {"Linear": ("",), "LayerNormLinear": ("",), "LayerNormMLP": ("fc1", "fc2")}


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
            described: list[Slot] = own.quantizer_slots(path)
            return described
        name = str(getattr(own, "name", "") or "")
        slots: list[Slot] = []
        for direction in Direction:
            known = _known_facts(own, direction)
            roles = _roles(own, direction, len(known) if known is not None else None)
            count = len(roles) if isinstance(roles, list) else roles
            facts = known if known is not None else _guessed_facts(own, direction, roles, count)
            given = roles if isinstance(roles, list) else None
            slots += describe_slots(path, module, name, direction, facts, given)
        if type(own).__name__ == "GroupedLinear" and getattr(own, "num_gemms", 1) > 1:
            return fold_experts(slots, own.num_gemms)
        return slots


def _roles(
    module: Any, direction: Direction, known: int | None
) -> list[QuantizerRole | None] | int:
    """The roles of one direction; their number where the module has no list of them."""
    if callable(getattr(module, "num_quantizers", None)):
        count = int(module.num_quantizers(direction.value))
        roles = module.get_quantizer_roles(direction.value)
    else:
        per_gemm = len(_LAYER[direction])
        count = known if known is not None else int(getattr(module, "num_gemms", 1)) * per_gemm
        forward = direction is _FORWARD
        roles = module.get_quantizer_roles(fwd=forward, num_quantizers=count)
    return count if roles is None else [_own_role(role) for role in roles]


def _own_role(role: Any) -> QuantizerRole | None:
    if role is None or isinstance(role, QuantizerRole):
        return role
    return QuantizerRole(str(role.module_type), str(role.tensor_type), str(role.name))


def _known_facts(module: Any, direction: Direction) -> list[SlotFacts] | None:
    """What is known of the slots of TransformerEngine's own classes; None for all others."""
    cls = type(module)
    if not cls.__module__.startswith("transformer_engine."):
        return None
    if cls.__name__ == "DotProductAttention":
        return [
            SlotFacts(operand, "attention", consumed)
            for operand, consumed in attention_operands(direction)
        ]
    if cls.__name__ == "GroupedLinear" and hasattr(module, "num_gemms"):
        weights = [("", f"weight{i}") for i in range(module.num_gemms)]
    else:
        groups = _TE_GROUPS.get(cls.__name__, ())
        weights = [(group, f"{group}_weight" if group else "weight") for group in groups]
    facts = [
        _fact(module, operand, group, consumed, parameter)
        for group, parameter in weights
        for operand, consumed in _LAYER[direction]
    ]
    return facts or None


def _guessed_facts(
    module: Any, direction: Direction, roles: list[QuantizerRole | None] | int, count: int
) -> list[SlotFacts]:
    """Operands by tensor type; a slot without a role is taken for a boundary."""
    given = roles if isinstance(roles, list) else [QuantizerRole()] * count
    return [
        _fact(
            module,
            _BOUNDARY[direction] if role is None else role.tensor_type,
            "",
            role is not None,
            "weight",
        )
        for role in given
    ]


def _fact(module: Any, operand: str, group: str, consumed: bool, parameter: str) -> SlotFacts:
    weight = getattr(module, parameter, None)
    if operand != "weight" or getattr(weight, "ndim", 0) != 2:
        return SlotFacts(operand, group, consumed)
    assert weight is not None
    return SlotFacts(operand, group, consumed, tuple(weight.shape), (parameter,))
