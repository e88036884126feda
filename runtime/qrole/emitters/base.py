"""Emitters: how modules that know nothing of roles, and those that do, yield slots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from qrole.roles import Direction, QuantizerRole, Slot

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "EmitOptions",
    "Emitter",
    "attention_operands",
    "attention_slots",
    "class_name",
    "linear_slots",
]


@dataclass(frozen=True)
class EmitOptions:
    """What the user asked the walk for.

    Attributes:
        attention: Emit `dpa` slots for attention modules of foreign models too.
    """

    attention: bool = False


class Emitter(ABC):
    """Yields the slots of the modules it knows. Small, registered, without state.

    Third parties register a subclass under the entry-point group `qrole.emitters`; the first
    emitter that answers for a module is believed.

    Attributes:
        name: Shown as the source of a module's slots.
        priority: Higher is asked earlier. Modules that speak of roles themselves come first (100),
            third parties' emitters next (50), qrole's own for foreign modules last (0).
    """

    name: ClassVar[str]
    priority: ClassVar[int] = 50

    @abstractmethod
    def slots(self, path: str, module: nn.Module, options: EmitOptions) -> list[Slot] | None:
        """The module's own slots, its children's not included.

        Args:
            path: Dotted path of the module in the model.
            module: The module; its parameters may be on the meta device.
            options: What the user asked for.

        Returns:
            Forward slots, then backward slots; an empty list for a module whose tensors are known
            to need no quantizer; None for a module that this emitter does not know.
        """

    def covers_children(self, module: nn.Module) -> bool:
        """Whether the slots stand for the module's children too, so that the walk stops here."""
        return False


def linear_slots(
    path: str,
    module_class: str,
    *,
    weight: str,
    shape: tuple[int, ...],
    group: str = "",
    module_type: str = "linear",
    copies: int = 1,
    start: tuple[int, int] = (0, 0),
    parameters: Iterable[str] = (),
) -> list[Slot]:
    """Input, weight and grad_output slots of one linear layer (or of `copies` grouped ones).

    Args:
        path: Path of the module that holds the weight.
        module_class: Its qualified class name.
        weight: Full name of the weight parameter.
        shape: (out, in) of one copy.
        group: The layer within the module, where there are several.
        module_type: `linear` or `grouped_linear`.
        copies: Number of experts.
        start: Index of the first forward and of the first backward slot.
        parameters: All names of the weight where it has several; default `weight` alone.
    """
    name = f"{path}.{group}" if group else path

    def slot(direction: Direction, index: int, operand: str) -> Slot:
        is_weight = operand == "weight"
        return Slot(
            module=path,
            direction=direction,
            index=index,
            role=QuantizerRole(module_type, operand, name),
            module_class=module_class,
            te_name=name,
            operand=operand,
            group=group,
            copies=copies,
            shape=shape if is_weight else None,
            parameters=(tuple(parameters) or (weight,)) if is_weight else (),
        )

    forward, backward = start
    return [
        slot(Direction.FORWARD, forward, "input"),
        slot(Direction.FORWARD, forward + 1, "weight"),
        slot(Direction.BACKWARD, backward, "grad_output"),
    ]


# TransformerEngine's groups of slots, as (operand, tensor type of the role, slots, the one read).
_ATTENTION = {
    Direction.FORWARD: (("qkv", "qkv", 3, 2), ("o", "", 3, 0), ("s", "s", 3, 2)),
    Direction.BACKWARD: (("dqkv", "", 2, 0), ("do", "do", 2, 1), ("dp", "dp", 2, 1)),
}
_HINTS = {"o": "dpa_output", "dqkv": "dpa_grad_input"}


def attention_operands(direction: Direction) -> list[tuple[str, bool]]:
    """Operand of each slot of a dot-product attention, and whether anything reads the slot."""
    return [
        (operand, i == read)
        for operand, _, count, read in _ATTENTION[direction]
        for i in range(count)
    ]


def attention_slots(
    path: str, module_class: str, *, name: str, start: tuple[int, int] = (0, 0)
) -> list[Slot]:
    """The 9 forward and 6 backward slots of a dot-product attention.

    Args:
        path: Path of the module.
        module_class: Its qualified class name.
        name: The name that goes into the roles.
        start: Index of the first forward and of the first backward slot.
    """
    slots: list[Slot] = []
    for (direction, groups), index in zip(_ATTENTION.items(), start, strict=True):
        for operand, tensor_type, count, read in groups:
            hint = _HINTS.get(operand, "")
            role = (
                QuantizerRole(name=f"{name}.{hint}" if name else hint)
                if hint
                else QuantizerRole("dpa", tensor_type, name)
            )
            slots += [
                Slot(
                    module=path,
                    direction=direction,
                    index=index + i,
                    role=role,
                    module_class=module_class,
                    te_name=name,
                    operand=operand,
                    group="attention",
                    consumed=i == read,
                )
                for i in range(count)
            ]
            index += count
    return slots


def class_name(module: nn.Module) -> str:
    """Qualified class name, torch's own modules without their file's name."""
    cls = type(module)
    if cls.__module__.startswith("torch.nn.modules"):
        return f"torch.nn.{cls.__qualname__}"
    return f"{cls.__module__}.{cls.__qualname__}"
