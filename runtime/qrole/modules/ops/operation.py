"""Operations: small modules that a `Sequential` runs as one pipeline.

An operation's output is quantized by the input quantizer of the one that follows, its input's
gradient by the grad_output quantizer of the one before, where there are such.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from qrole.autocasting import current_autocast
from qrole.errors import ConfigError
from qrole.modules.extra_state import ExtraState
from qrole.modules.rebuild import (
    RoleCountError,
    StaleQuantizersWarning,
    buffers_of,
    carry_history,
    history_fits,
)
from qrole.modules.slots import SlotFacts, describe_slots
from qrole.quantizers import Quantizer
from qrole.recipes import Recipe
from qrole.roles import Direction, QuantizerRole, Slot
from qrole.state import DelayedBuffers, RecipeState, register

__all__ = [
    "MODES",
    "BasicOperation",
    "FusedOperation",
    "FusibleOperation",
    "PlainOperation",
    "run_operations",
]

MODES: tuple[str, str] = ("forward", "backward")
Result = Tensor | tuple[Tensor, ...]


class FusibleOperation(nn.Module):
    """Anything that a `Sequential` can run in a pipeline with its neighbours."""

    @property
    def basic_operations(self) -> list[BasicOperation]:
        """The operations that it consists of."""
        raise NotImplementedError

    def forward(self, x: Tensor, *extra: Tensor) -> Result:
        """Runs it alone.

        Args:
            x: Input.
            extra: What its operations take besides, in order.

        Returns:
            The output, followed by what its operations give besides.
        """
        return run_operations(self.basic_operations, x, extra)


class BasicOperation(FusibleOperation, ExtraState):
    """One operation, with quantizer slots or without.

    Quantizers are built when it first runs inside `autocast`, and again only for a recipe of
    another class: a second CustomRecipe finds the quantizers of the first, as in TransformerEngine.
    `reset_recipe_state(recipe=None)` forgets them.

    Attributes:
        name: Goes into the roles; `""` unless someone sets it.
        num_extra_inputs: Tensors that it takes besides its input.
        num_extra_outputs: Tensors that it gives besides its output.
    """

    num_extra_inputs: int = 0
    num_extra_outputs: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.name = ""
        self._states: dict[str, RecipeState] = {}
        self._quantizers: dict[str, list[Quantizer]] = {}

    @property
    def basic_operations(self) -> list[BasicOperation]:
        """Itself."""
        return [self]

    def slot_facts(self, mode: str) -> list[SlotFacts]:
        """Facts of the slots of a direction, `forward` or `backward`, in slot order."""
        return []

    def num_quantizers(self, mode: str) -> int:
        """Number of slots of a direction, `forward` or `backward`."""
        return len(self.slot_facts(mode))

    def get_quantizer_roles(self, mode: str) -> list[QuantizerRole] | None:
        """One role per slot; None gives every slot a bare role, with a warning."""
        return None

    def quantizer_slots(self, path: str) -> list[Slot]:
        """The operation's slots as plans and audits know them, forward then backward."""
        slots = []
        for mode in MODES:
            facts, roles = self.slot_facts(mode), self.get_quantizer_roles(mode)
            slots += describe_slots(path, self, self.name, Direction(mode), facts, roles)
        return slots

    def get_quantizer(self, mode: str, index: int) -> Quantizer | None:
        """One slot's quantizer; None outside `autocast`."""
        made = self._quantizers.get(mode)
        return made[index] if made else None

    def built_quantizers(self, mode: str) -> list[Quantizer]:
        """The quantizers of a direction, in slot order; empty outside `autocast`."""
        return list(self._quantizers.get(mode, ()))

    def get_input_quantizer(self) -> Quantizer | None:
        """What the operation before quantizes its output with."""
        return self.get_quantizer("forward", 0)

    def get_grad_output_quantizer(self) -> Quantizer | None:
        """What the operation that follows quantizes its input's gradient with."""
        return self.get_quantizer("backward", 0)

    def reset_recipe_state(
        self, *, recipe: Recipe | None, device: torch.device | None = None
    ) -> None:
        """Builds quantizers for a recipe, unless those at hand are for one of its class.

        Args:
            recipe: None forgets the quantizers.
            device: Where buffers of delayed scaling live.
        """
        if recipe is None:
            self._states, self._quantizers = {}, {}
            return
        for mode in MODES:
            count, old = self.num_quantizers(mode), self._states.get(mode)
            if not count or (old is not None and self._keeps(old, recipe)):
                continue
            state = self._make_state(mode, count, recipe, device)
            if old is not None:
                carry_history(old, state)
            self._states[mode] = state
            self._quantizers[mode] = self._make_quantizers(state)
            self.take_over_loaded()

    def _make_state(
        self, mode: str, count: int, recipe: Recipe, device: torch.device | None
    ) -> RecipeState:
        roles = self.get_quantizer_roles(mode)
        if roles is not None and len(roles) != count:
            raise RoleCountError(type(self).__name__, len(roles), count, mode)
        return RecipeState.create(
            recipe, mode=mode, num_quantizers=count, device=device, roles=roles
        )

    def _make_quantizers(self, state: RecipeState) -> list[Quantizer]:
        return state.make_quantizers()

    def _keeps(self, state: RecipeState, recipe: Recipe) -> bool:
        if not isinstance(recipe, type(state.recipe)) or not history_fits(state, recipe):
            return False
        if getattr(recipe, "qfactory", None) != getattr(state.recipe, "qfactory", None):
            warnings.warn(
                f"{type(self).__name__} {self.name!r} keeps the quantizers of another factory; as "
                "in TransformerEngine, an op does not notice a second CustomRecipe. Call "
                "reset_recipe_state(recipe=None) first",
                StaleQuantizersWarning,
                stacklevel=5,
            )
        return True

    def register_buffers(self) -> None:
        """Has the step's end update the buffers of delayed scaling."""
        group = current_autocast().amax_reduction_group
        for buffers in self.delayed_buffers().values():
            register(buffers, group)

    @override
    def delayed_buffers(self) -> dict[str, DelayedBuffers]:
        found = {mode: buffers_of(state) for mode, state in self._states.items()}
        return {mode: buffers for mode, buffers in found.items() if buffers is not None}

    def op_forward(
        self,
        x: Tensor,
        *extra: Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
    ) -> Result:
        """Computes the output; autograd derives the rest.

        Args:
            x: Input.
            extra: `num_extra_inputs` tensors.
            prev_op_grad_output_quantizer: Of the operation before; None where there is none.
            next_op_input_quantizer: Of the operation that follows; None where there is none.

        Returns:
            The output, followed by `num_extra_outputs` tensors.
        """
        raise NotImplementedError


class PlainOperation(BasicOperation):
    """An operation without slots that takes no notice of its neighbours' quantizers."""

    def compute(self, x: Tensor, *extra: Tensor) -> Result:
        """The output, followed by `num_extra_outputs` tensors."""
        raise NotImplementedError

    @override
    def op_forward(
        self,
        x: Tensor,
        *extra: Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
    ) -> Result:
        return self.compute(x, *extra)


class FusedOperation(FusibleOperation):
    """Several basic operations under one name.

    Args:
        basic_ops: In the order in which they run.
    """

    def __init__(self, basic_ops: Sequence[BasicOperation]) -> None:
        super().__init__()
        self.basic_ops = nn.ModuleList(basic_ops)

    @property
    def basic_operations(self) -> list[BasicOperation]:
        """The operations that it consists of."""
        return [op for op in self.basic_ops if isinstance(op, BasicOperation)]


def run_operations(ops: Sequence[BasicOperation], x: Tensor, extra: Sequence[Tensor]) -> Result:
    """Runs operations one after the other.

    Args:
        ops: The pipeline.
        x: Its input.
        extra: What the operations take besides, in order.

    Returns:
        The output, followed by what the operations give besides.

    Raises:
        ConfigError: Another number of extra inputs than the operations take.
    """
    wanted = sum(op.num_extra_inputs for op in ops)
    if len(extra) != wanted:
        raise ConfigError(
            f"{len(extra)} extra inputs for {', '.join(type(op).__name__ for op in ops)}",
            expected=f"Expected {wanted} extra inputs",
            hint="pass them after the input, in the order of the operations",
        )
    state = current_autocast()
    for op in ops:
        op.reset_recipe_state(recipe=state.get_recipe() if state.enabled else None, device=x.device)
        op.register_buffers()
    inputs, outputs = iter(extra), []
    for before, op, after in zip([None, *ops[:-1]], ops, [*ops[1:], None], strict=True):
        result = op.op_forward(
            x,
            *itertools.islice(inputs, op.num_extra_inputs),
            prev_op_grad_output_quantizer=before.get_grad_output_quantizer() if before else None,
            next_op_input_quantizer=after.get_input_quantizer() if after else None,
        )
        x, *given = result if isinstance(result, tuple) else (result,)
        outputs += given
    return (x, *outputs) if outputs else x
