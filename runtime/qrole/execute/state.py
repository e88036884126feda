"""What a plan's quantizers remember from one step to the next."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Container, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch

from qrole.plans import Decision, Plan
from qrole.quantizers.base import Quantizer
from qrole.recipes import CustomRecipe
from qrole.roles import Direction, Slot
from qrole.state import CustomRecipeState, DelayedBuffers

if TYPE_CHECKING:
    from qrole.execute.run import Execution

__all__ = ["Asked", "PlanState", "copied"]

Asked = tuple[Slot, int, Any]


def asked_in_order(decisions: list[Decision]) -> Iterator[Asked]:
    """Slot, copy and answer in the order in which the factory was called.

    Args:
        decisions: Those of one module and direction, in slot order.
    """
    for (_, copies), run in groupby(decisions, lambda d: (d.slot.group, d.slot.copies)):
        members = list(run)
        for copy in range(copies):
            for decision in members:
                yield decision.slot, copy, decision.answers[copy]


class PlanState:
    """Quantizers of a plan's foreign modules, with the delayed scaling and random bits behind them.

    One state serves one model through any number of runs. The plan's own quantizer objects are
    copied, never changed.

    Args:
        plan: The plan.
        seed: Of stochastic rounding.

    Attributes:
        plan: The plan.
        buffers: Scales and amax histories of delayed scaling, for runs to register.
        kept: What modules that build their quantizers themselves remember, by path.
        initialized: Paths of those that have done so.
        recipe: The recipe that they ask; its factory gives `answers` one after the other.
        answers: What is given next.
        run: The run that is going on.
        told: The quantized weight of each slot and expert that observers know.
    """

    def __init__(self, plan: Plan, *, seed: int = 0) -> None:
        self.plan = plan
        self.buffers: list[DelayedBuffers] = []
        self.kept: dict[str, dict[str, Any]] = {}
        self.initialized: set[str] = set()
        self.answers: list[Any] = []
        self.recipe = CustomRecipe(
            qfactory=lambda role: self.answers.pop(0), fp8_dpa=plan.inventory.attention
        )
        self.run: Execution | None = None
        self.told: dict[tuple[str, int], tuple[object, bool]] = {}
        self._seed = seed
        self._quantizers: dict[tuple[str, int], Quantizer] = {}
        self._generators: dict[tuple[str, int], torch.Generator] = {}
        self._asked: dict[tuple[str, Direction], list[Decision]] = defaultdict(list)
        for decision in plan:
            self._asked[(decision.slot.module, decision.slot.direction)].append(decision)
        self._built = False

    def build(self, own: Container[str]) -> None:
        """Makes the quantizers of foreign modules, once.

        Args:
            own: Paths of modules that build theirs themselves.
        """
        if not self._built:
            for path, direction in self._asked:
                if path not in own:
                    self._build(path, direction)
        self._built = True

    def asked(self, path: str, direction: Direction) -> list[Asked]:
        """Slot, copy and answer of one module and direction, in the order of its quantizers."""
        return list(asked_in_order(self._asked[(path, direction)]))

    def _build(self, path: str, direction: Direction) -> None:
        """Resolves requests for delayed scaling as modules do."""
        asked = self.asked(path, direction)
        answers = iter([answer for _, _, answer in asked])
        recipe = CustomRecipe(qfactory=lambda role: copied(next(answers)))
        made = CustomRecipeState(
            recipe,
            mode=direction.value,
            num_quantizers=len(asked),
            roles=[slot.role for slot, _, _ in asked],
        )
        for (slot, copy, _), quantizer in zip(asked, made.make_quantizers(), strict=True):
            self._quantizers[(slot.id, copy)] = quantizer
        if made.delayed is not None:
            self.buffers.append(made.delayed.buffers)

    def quantizer(self, slot: Slot, copy: int) -> Quantizer:
        """The quantizer of one slot and expert."""
        return self._quantizers[(slot.id, copy)]

    def generator(self, slot: Slot, copy: int, device: torch.device) -> torch.Generator:
        """Random bits of one slot and expert, the same for every state of equal seed."""
        key = (slot.id, copy)
        if key not in self._generators:
            digest = hashlib.sha256(f"{self._seed}/{slot.id}/{copy}".encode()).digest()
            seed = int.from_bytes(digest[:8], "little") >> 1
            self._generators[key] = torch.Generator(device).manual_seed(seed)
        return self._generators[key]


def copied(answer: Any) -> Any:
    """A quantizer whose usage flags are its own; a request as it is."""
    return answer.copy() if isinstance(answer, Quantizer) else answer
