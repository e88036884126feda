"""Running any model under a plan: a context manager that undoes itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import ref

import torch
from torch import nn

from qrole.errors import UsageError
from qrole.execute.attention import AttentionRun
from qrole.execute.layers import Layer, Match, WeightTable, layers_of
from qrole.execute.mode import PlanMode
from qrole.execute.observer import Observer
from qrole.execute.own_modules import own_modules, running_own_modules
from qrole.execute.products import Call, quantized_linear
from qrole.execute.seen import Seen, SeenOperands
from qrole.execute.state import PlanState
from qrole.execute.storage_notes import StorageNotes
from qrole.execute.watching import Watch, outside_error, watch
from qrole.execute.weights import WeightCache
from qrole.modules.attention.fp8 import AttentionQuantizers
from qrole.plans import Plan
from qrole.quantizers.base import Quantizer
from qrole.quantizers.tensor import QuantizedTensor
from qrole.roles import Gemm, Slot
from qrole.state import register, update_delayed_scaling

__all__ = ["Execution", "executing"]

_OF_PRODUCTS = ("input", "weight", "grad_output")


class Execution:
    """One run of a model under a plan.

    Attributes:
        plan: The plan.
        layers: Its linear layers.
        table: Finds the layer of a weight.
        observer: Who watches.
        rows: Rows that each `(layer, copy)` multiplied so far, recomputation not counted.
        readers: Functions that read a covered weight and were no product that is known; of an
            attention, why it was not computed.
        attention: Computes attention of foreign modules.
    """

    def __init__(
        self,
        model: nn.Module,
        state: PlanState,
        own: dict[str, nn.Module],
        observer: Observer,
        weights: WeightCache,
    ) -> None:
        self.plan = state.plan
        self.layers = layers_of(state.plan)
        self.table = WeightTable(model, tuple(x for x in self.layers if x.module not in own))
        self.observer = observer
        self.rows: Counter[tuple[Layer, int]] = Counter()
        self.readers: dict[Layer, set[str]] = {}
        self.active = True
        self._state = state
        self._weights = weights
        self._layer_of = {d.slot.id: layer for layer in self.layers for d in layer.slots.values()}
        self._steps_pending = False
        self._latest: tuple[Any, torch.Tensor, QuantizedTensor] | None = None
        self._unrecorded: Counter[tuple[str, int]] = Counter()
        self._seen = SeenOperands()
        self._told: StorageNotes[ref[torch.Tensor]] = StorageNotes()
        self._own = frozenset(own)
        self.attention = AttentionRun(self)

    def multiply(
        self, match: Match, x: torch.Tensor, w_NK: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Computes x (..., K) @ w.T + bias with the layer's quantizers, differentiable."""
        layer, device = match.layer, x.device.type
        if torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
        x_MK = x.reshape(-1, x.shape[-1])
        added = bias if bias is None else bias.to(x.dtype)
        repeated = _in_backward()
        with torch.autocast(device, enabled=False):
            fits = x_MK.shape[1] == w_NK.shape[1]  # If not, torch has the better words for it.
            if layer.quantized and fits and x_MK.shape[0]:
                recording = torch.is_grad_enabled()
                call = Call(self, layer, match.copy, match.stable, recording, repeated)
                y_MN = quantized_linear(x_MK, w_NK, added, call)
            else:
                y_MN = nn.functional.linear(x_MK, w_NK.to(x.dtype), added)
        if not repeated:
            self._saw_result(layer, match.copy, y_MN)
        return y_MN.view(*x.shape[:-1], y_MN.shape[-1])

    def quantize(
        self, call: Call, operand: str, x_MK: torch.Tensor, *, rowwise: bool, columnwise: bool
    ) -> QuantizedTensor:
        """An input or an output gradient of a foreign layer, quantized."""
        slot = call.layer.slots[operand].slot
        quantizer = self._state.quantizer(slot, call.copy)
        quantizer.set_usage(rowwise=rowwise, columnwise=columnwise)
        made = self._quantized(quantizer, slot, call.copy, x_MK)
        if operand == "grad_output" or not call.repeated:
            self.observer.operand(slot, call.copy, x_MK, made)
            self._unrecorded[(slot.id, call.copy)] += not call.differentiable
        elif made.columnwise is not None and self._unrecorded[(slot.id, call.copy)]:
            # A reentrant checkpoint made the first pass without gradients, so row-wise only.
            self._unrecorded[(slot.id, call.copy)] -= 1
            self.observer.operand(slot, call.copy, x_MK, replace(made, rowwise=None))
        return made

    def _quantized(
        self, quantizer: Quantizer, slot: Slot, copy: int, x_MK: torch.Tensor
    ) -> QuantizedTensor:
        """Quantizes, or finds what an equal quantizer just made of the same tensor.

        Queries, keys and values read one input, and so do the halves of a gated MLP.
        """
        forms = (quantizer.rowwise_format, quantizer.columnwise_format)
        repeatable = not any(f.delayed or f.stochastic_rounding for f in forms)
        repeatable = repeatable and not x_MK.is_inference()  # Such tensors count no versions.
        usages = (quantizer.rowwise_usage, quantizer.columnwise_usage)
        version = x_MK._version if repeatable else 0
        key = (x_MK.data_ptr(), version, x_MK.shape, x_MK.stride(), quantizer, usages)
        if repeatable and self._latest is not None and self._latest[0] == key:
            return self._latest[2]
        generator = self._state.generator(slot, copy, x_MK.device)
        made = quantizer.quantize(x_MK.detach(), generator=generator)
        # Holding the tensor keeps its memory from being given to another one.
        self._latest = (key, x_MK, made) if repeatable else None
        return made

    def quantize_weight(
        self, call: Call, w_NK: torch.Tensor, dtype: torch.dtype, *, columnwise: bool
    ) -> QuantizedTensor:
        """A foreign layer's weight, quantized once as long as it does not change."""
        slot = call.layer.slots["weight"].slot
        quantizer = self._state.quantizer(slot, call.copy)
        quantizer.set_usage(rowwise=True, columnwise=columnwise)
        return self._quantized_weight(quantizer, slot, call.copy, w_NK, dtype, call.stable)

    def attention_quantizers(self, layer: Layer) -> AttentionQuantizers:
        """The quantizers of a foreign attention, which tell what they do."""
        found = {}
        for operand, decision in layer.slots.items():
            found[operand] = self._state.quantizer(decision.slot, 0)
            watch(found[operand], Watch(self._state, decision.slot, 0, foreign=True))
        return AttentionQuantizers.from_slots(found, partial=True)

    def quantize_own(
        self, quantizer: Any, slot: Slot, copy: int, tensor: torch.Tensor
    ) -> QuantizedTensor:
        """What a watched quantizer does: a module's own, or attention's; usage flags are set."""
        if slot.direction == "backward" and slot.module not in self._own:
            self.begin_backward(self._layer_of[slot.id])
        if slot.operand == "weight":
            made = self._quantized_weight(quantizer, slot, copy, tensor, tensor.dtype, True)
        else:
            generator = self._state.generator(slot, copy, tensor.device)
            made = quantizer.quantize_unwatched(tensor, generator=generator)
            if slot.direction == "backward" or not _in_backward():
                self.observer.operand(slot, copy, tensor, made)
        self._seen.remember(
            made, Seen(slot, copy, tensor if self.observer.wants_operands else None)
        )
        return made

    def saw_product(
        self, gemm: Gemm, left: Any, right: Any, result: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        """A module with quantizers of its own multiplied; its operands tell for whom.

        One of them may come from elsewhere, such as an op that only quantizes.
        """
        seen, other = self._seen.recall(left), self._seen.recall(right)
        by = next((s for s in (seen, other) if s and s.slot.operand in _OF_PRODUCTS), None)
        layer = self._layer_of.get(by.slot.id) if by is not None else None
        if by is None or layer is None or (gemm is Gemm.FPROP and _in_backward()):
            return
        copy = by.copy
        if gemm is Gemm.FPROP:
            self._saw_result(layer, copy, result.detach().reshape(-1, result.shape[-1]))
        if seen is None or other is None or seen.tensor is None or other.tensor is None:
            return
        a, b = (x.detach().reshape(-1, x.shape[-1]) for x in (seen.tensor, other.tensor))
        a, b = (a.t() if gemm is Gemm.WGRAD else a), (b.t() if gemm is Gemm.FPROP else b)
        flat = result.reshape(-1, result.shape[-1])
        self.observer.product(layer, gemm, copy, a, b, flat, bias)

    def end(self) -> None:
        """Lets go of what only a run that goes on needs."""
        self.active = False
        self._latest = None
        self._told.clear()
        self._seen.clear()
        self.attention.end()

    def begin_backward(self, layer: Layer) -> None:
        """Checks that the run goes on, and sees to delayed scaling when this pass is done.

        Raises:
            UsageError: The context was left before `backward()`.
        """
        if not self.active:
            raise outside_error(layer.name)
        if self._state.buffers and not self._steps_pending:
            self._steps_pending = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        self._steps_pending = False
        update_delayed_scaling(forward=False)

    def never_ran(self) -> list[Layer]:
        """Layers whose weight was in no product, in the order of the plan."""
        ran = {layer for layer, _ in self.rows}
        return [layer for layer in self.layers if layer not in ran]

    def saw_attention(self, layer: Layer, output: torch.Tensor) -> None:
        """An attention gave a result (..., Dv), quantized or not."""
        if not _in_backward():
            self._saw_result(layer, 0, output.detach().reshape(-1, output.shape[-1]))

    def _saw_result(self, layer: Layer, copy: int, y_MN: torch.Tensor) -> None:
        self.rows[(layer, copy)] += y_MN.shape[0]
        told = y_MN.detach()
        self.observer.output(layer, copy, told)
        self._told.put(told, ref(told))

    def before_change(self, tensor: torch.Tensor) -> None:
        """The model is about to write to a tensor; an observer may have kept it as an output."""
        kept = self._told.get(tensor)
        output = kept() if kept is not None else None
        if output is not None:
            output.data = output.clone()
            self._told.drop(tensor)

    def _quantized_weight(
        self,
        quantizer: Any,
        slot: Slot,
        copy: int,
        w_NK: torch.Tensor,
        dtype: torch.dtype,
        stable: bool,
    ) -> QuantizedTensor:
        generator = self._state.generator(slot, copy, w_NK.device)
        make = getattr(quantizer, "quantize_unwatched", quantizer.quantize)

        def quantize() -> QuantizedTensor:
            made: QuantizedTensor = make(w_NK.detach().to(dtype), generator=generator)
            return made

        # A delayed scale changes from step to step though the weight may not.
        stable = stable and not quantizer.rowwise_format.delayed
        made = self._weights.get(w_NK, dtype, quantizer, quantize) if stable else quantize()
        self._tell_weight(slot, copy, w_NK.detach().to(dtype), made)
        return made

    def _tell_weight(
        self, slot: Slot, copy: int, w_NK: torch.Tensor, made: QuantizedTensor
    ) -> None:
        """Tells of each representation of a quantized weight once."""
        known, had_columns = self._state.told.get((slot.id, copy), (None, False))
        has_columns = made.columnwise is not None
        if known is not made:
            self.observer.operand(slot, copy, w_NK, made)
        elif has_columns and not had_columns:
            self.observer.operand(slot, copy, w_NK, replace(made, rowwise=None))
        self._state.told[(slot.id, copy)] = (made, has_columns)


@contextmanager
def executing(
    model: nn.Module,
    plan: Plan,
    *,
    observer: Observer | None = None,
    weights: WeightCache | None = None,
    state: PlanState | None = None,
    seed: int = 0,
) -> Iterator[Execution]:
    """Makes every covered layer of a model compute with the plan's quantizers, fwd and bwd.

    Nothing in the model is replaced: products with covered weights are intercepted where torch
    dispatches them, so any module that multiplies by a covered parameter is served, whatever its
    class. Modules that quantize by themselves are given the plan's quantizers. Compiled functions
    run eagerly meanwhile. The backward pass belongs inside the block.

    Args:
        model: The module that the plan was made for, or that module wrapped by DDP, FSDP or
            `torch.compile`.
        plan: What every slot gets.
        observer: Told of operands, products and outputs.
        weights: Quantized weights to share with other runs; default: this run's own.
        state: What quantizers remember from an earlier block; default: they begin anew.
        seed: Of stochastic rounding, where there is no state.

    Raises:
        UsageError: The state belongs to another plan.
    """
    inner = _unwrapped(model)
    own = own_modules(inner, plan)
    state = state or PlanState(plan, seed=seed)
    if state.plan is not plan:
        raise UsageError(
            f"a state of {state.plan.factory.name} for a plan of {plan.factory.name}",
            expected="the state that an earlier run of the same plan used",
            hint="build one PlanState per plan",
        )
    state.build(own)
    run = Execution(inner, state, own, observer or Observer(), weights or WeightCache())
    for buffers in state.buffers:
        register(buffers)
    state.run = run
    ended = inner.register_forward_hook(lambda *_: _end_forward(state))
    try:
        with (
            run.table.following(),
            running_own_modules(own, state, run),
            torch.compiler.set_stance("force_eager"),
            PlanMode(run),
        ):
            yield run
    finally:
        state.run = None
        ended.remove()
        run.end()


def _end_forward(state: PlanState) -> None:
    """Ends the forward part of a step, as TransformerEngine's autocast does where it is left."""
    if torch.is_grad_enabled() and (state.buffers or state.initialized):
        update_delayed_scaling(forward=True)


def _in_backward() -> bool:
    """Whether autograd is running, so that a forward pass is a recomputation."""
    return torch._C._current_graph_task_id() != -1


def _unwrapped(model: nn.Module) -> nn.Module:
    inner: Any = model
    while True:
        if isinstance(inner, nn.parallel.DistributedDataParallel):
            inner = inner.module
        elif hasattr(inner, "_orig_mod"):
            inner = inner._orig_mod
        else:
            found: nn.Module = inner
            return found
