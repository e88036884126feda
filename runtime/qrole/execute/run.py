"""Running any model under a plan: a context manager that undoes itself."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from qrole.errors import UsageError
from qrole.execute.layers import Layer, Match, WeightTable, layers_of
from qrole.execute.mode import PlanMode
from qrole.execute.observer import Observer
from qrole.execute.products import Call, quantized_linear
from qrole.execute.weights import WeightCache
from qrole.plan import Plan
from qrole.quantizers.base import Quantizer
from qrole.quantizers.tensor import QuantizedTensor

__all__ = ["Execution", "executing"]


class Execution:
    """One run of a model under a plan.

    Attributes:
        plan: The plan.
        layers: Its linear layers.
        table: Finds the layer of a weight.
        observer: Who watches.
        rows: Rows that each `(layer, copy)` multiplied so far, recomputation not counted.
        readers: Functions that read a covered weight and were no product that is known.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        layers: tuple[Layer, ...],
        observer: Observer,
        weights: WeightCache,
        seed: int,
    ) -> None:
        self.plan = plan
        self.layers = layers
        self.table = WeightTable(model, layers)
        self.observer = observer
        self.rows: Counter[tuple[Layer, int]] = Counter()
        self.readers: dict[Layer, set[str]] = {}
        self.active = True
        self._weights = weights
        self._seed = seed
        self._quantizers: dict[tuple[Layer, str, int], Quantizer] = {}
        self._generators: dict[tuple[Layer, str, int], torch.Generator] = {}

    def multiply(
        self, match: Match, x: torch.Tensor, w_NK: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Computes x (..., K) @ w.T + bias with the layer's quantizers, differentiable."""
        device = x.device.type
        if torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
        x_MK = x.reshape(-1, x.shape[-1])
        recomputing = torch._C._current_graph_task_id() != -1
        if not recomputing:
            self.rows[(match.layer, match.copy)] += x_MK.shape[0]
        with torch.autocast(device, enabled=False):
            if match.layer.quantized and x_MK.shape[0]:
                call = Call(self, match.layer, match.copy, match.stable, torch.is_grad_enabled())
                y_MN = quantized_linear(x_MK, w_NK, bias, call)
            else:
                added = bias if bias is None else bias.to(x.dtype)
                y_MN = nn.functional.linear(x_MK, w_NK.to(x.dtype), added)
        if not recomputing:
            self.observer.output(match.layer, match.copy, y_MN.detach())
        return y_MN.view(*x.shape[:-1], y_MN.shape[-1])

    def quantize(
        self, call: Call, operand: str, x_MK: torch.Tensor, *, rowwise: bool, columnwise: bool
    ) -> QuantizedTensor:
        """An input or an output gradient, quantized; at least row-wise."""
        quantizer = self._quantizer(call, operand)
        quantizer.set_usage(rowwise=rowwise, columnwise=columnwise)
        made = quantizer.quantize(x_MK.detach(), generator=self._generator(call, operand, x_MK))
        self.observer.operand(call.layer, operand, call.copy, x_MK, made)
        return made

    def quantize_weight(
        self, call: Call, w_NK: torch.Tensor, dtype: torch.dtype, *, columnwise: bool
    ) -> QuantizedTensor:
        """The weight, quantized once as long as it does not change."""
        quantizer = self._quantizer(call, "weight")
        generator = self._generator(call, "weight", w_NK)
        if call.stable:
            made, fresh = self._weights.get(w_NK, dtype, quantizer, columnwise, generator)
        else:
            made = self._weights.quantize(w_NK, dtype, quantizer, columnwise, generator)
            fresh = True
        if fresh:
            self.observer.operand(call.layer, "weight", call.copy, w_NK.detach().to(dtype), made)
        return made

    def check_alive(self, layer: Layer) -> None:
        """Refuses a backward pass after the run has ended.

        Raises:
            UsageError: The context was left before `backward()`.
        """
        if not self.active:
            raise UsageError(
                f"the backward pass of {layer.name} ran after the plan's context was left",
                expected="forward and backward inside the same `with executing(...)`",
                hint="call loss.backward() inside the block",
            )

    def never_ran(self) -> list[Layer]:
        """Layers whose weight was in no product, in the order of the plan."""
        ran = {layer for layer, _ in self.rows}
        return [layer for layer in self.layers if layer not in ran]

    def _quantizer(self, call: Call, operand: str) -> Quantizer:
        key = (call.layer, operand, call.copy)
        if key not in self._quantizers:
            answer = call.layer.slots[operand].answers[call.copy]
            self._quantizers[key] = answer.copy()
        return self._quantizers[key]

    def _generator(self, call: Call, operand: str, like: torch.Tensor) -> torch.Generator:
        """Random bits of one slot and expert, the same in every run of equal seed."""
        key = (call.layer, operand, call.copy)
        if key not in self._generators:
            name = f"{self._seed}/{call.layer.slots[operand].slot.id}/{call.copy}"
            seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1
            self._generators[key] = torch.Generator(like.device).manual_seed(seed)
        return self._generators[key]


@contextmanager
def executing(
    model: nn.Module,
    plan: Plan,
    *,
    observer: Observer | None = None,
    weights: WeightCache | None = None,
    seed: int = 0,
) -> Iterator[Execution]:
    """Makes every covered layer of a model compute with the plan's quantizers, fwd and bwd.

    Nothing in the model is replaced: products with covered weights are intercepted where torch
    dispatches them, so any module that multiplies by a covered parameter is served, whatever its
    class. Compiled functions run eagerly meanwhile. The backward pass belongs inside the block.

    Args:
        model: The module that the plan was made for, or that module wrapped by DDP, FSDP or
            `torch.compile`.
        plan: What every slot gets.
        observer: Told of operands, products and outputs.
        weights: Quantized weights to share with other runs; default: this run's own.
        seed: Of stochastic rounding.
    """
    layers = layers_of(plan)
    run = Execution(
        _unwrapped(model), plan, layers, observer or Observer(), weights or WeightCache(), seed
    )
    try:
        with (
            run.table.following(),
            torch.compiler.set_stance("force_eager"),
            PlanMode(run),
        ):
            yield run
    finally:
        run.active = False


def _unwrapped(model: nn.Module) -> nn.Module:
    inner: Any = model
    while True:
        if isinstance(inner, nn.parallel.DistributedDataParallel):
            inner = inner.module
        elif hasattr(inner, "_orig_mod"):
            inner = inner._orig_mod
        else:
            return inner  # type: ignore[no-any-return]
