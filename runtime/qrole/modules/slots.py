"""What a module tells about its slots beyond their roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from qrole.roles import Direction, QuantizerRole, Slot

__all__ = ["EmitsSlots", "SlotFacts", "describe_slots"]


@runtime_checkable
class EmitsSlots(Protocol):
    """A module that describes its own slots; every qrole module and op does."""

    def quantizer_slots(self, path: str) -> list[Slot]:
        """Forward slots, then backward slots, of a module that sits at `path` in the model."""


@dataclass(frozen=True)
class SlotFacts:
    """One slot as its module knows it; the fields are those of `qrole.roles.Slot`.

    Attributes:
        operand: What the tensor is to its GEMMs.
        group: Which of the module's linear layers.
        consumed: Something reads what the slot's quantizer makes.
        shape: Of the tensor, when known.
        parameters: Names of the parameters that hold the tensor, within the module.
        copies: Number of equal slots that this one stands for.
    """

    operand: str
    group: str = ""
    consumed: bool = True
    shape: tuple[int, ...] | None = None
    parameters: tuple[str, ...] = ()
    copies: int = 1


def describe_slots(
    path: str,
    module: object,
    te_name: str,
    direction: Direction,
    facts: Sequence[SlotFacts],
    roles: Sequence[QuantizerRole | None] | None,
) -> list[Slot]:
    """The slots of one direction.

    Args:
        path: Dotted path of the module in the model.
        module: The module.
        te_name: The name that TransformerEngine puts into its roles.
        direction: Forward or backward.
        facts: One per slot.
        roles: One per slot; None where the module has no list, so that roles are bare.
    """
    name = f"{type(module).__module__}.{type(module).__qualname__}"
    bare = roles is None
    given = [QuantizerRole()] * len(facts) if roles is None else roles
    return [
        Slot(
            module=path,
            direction=direction,
            index=index,
            role=role,
            module_class=name,
            te_name=(role.name if role is not None else "") or te_name,
            operand=fact.operand,
            group=fact.group,
            consumed=fact.consumed,
            copies=fact.copies,
            shape=fact.shape,
            parameters=tuple(f"{path}.{p}" if path else p for p in fact.parameters),
            bare=bare,
        )
        for index, (fact, role) in enumerate(zip(facts, given, strict=True))
    ]
