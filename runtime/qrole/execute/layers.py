"""The layers of a plan, and which one a tensor is the weight of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from qrole.execute.gathers import Gather, Picked
from qrole.execute.storage_notes import StorageNotes
from qrole.plans import Decision, Plan

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Layer", "Match", "WeightTable", "layers_of"]

_CAST_FROM = "_qrole_cast_from"
_LINEAR = ("input", "weight", "grad_output")
_ATTENTION = ("qkv", "o", "s", "dqkv", "do", "dp")


@dataclass(frozen=True)
class Layer:
    """One linear layer, whose slots feed the same three GEMMs, or one attention.

    Attributes:
        module: Dotted path of the module that owns the slots.
        group: Which of the module's layers.
        slots: Decisions by operand: `input`, `weight`, `grad_output`; of an attention `qkv`, `o`,
            `s`, `dqkv`, `do`, `dp`.
        copies: Number of experts; 1 for a plain layer.
        parameters: Full names of the weight, more than one where it is tied; none of an attention.
    """

    module: str
    group: str
    slots: dict[str, Decision] = field(hash=False, compare=False)
    copies: int
    parameters: tuple[str, ...]

    @property
    def name(self) -> str:
        """`module`, or `module.group`."""
        return ".".join(part for part in (self.module, self.group) if part) or "."

    @property
    def is_attention(self) -> bool:
        """Whether the slots are those of an attention."""
        return "qkv" in self.slots

    @property
    def quantized(self) -> bool:
        """Whether any operand is stored in less than high precision."""
        formats = [f for d in self.slots.values() for f in (d.rowwise, d.columnwise)]
        return any(f is not None and f.family != "high_precision" for f in formats)


def layers_of(plan: Plan) -> tuple[Layer, ...]:
    """The plan's linear layers with a weight, in the order of the inventory.

    Attention is among them where the inventory was asked for it.
    """
    operands = _LINEAR + (_ATTENTION if plan.inventory.attention else ())
    grouped: dict[tuple[str, str], dict[str, Decision]] = defaultdict(dict)
    for decision in plan:
        slot = decision.slot
        if slot.consumed and slot.operand in operands:
            grouped[(slot.module, slot.group)][slot.operand] = decision
    return tuple(
        Layer(module, group, slots, slots[named].slot.copies, slots[named].slot.parameters)
        for (module, group), slots in grouped.items()
        for named in ("weight", "qkv")
        if named in slots
    )


@dataclass(frozen=True)
class Match:
    """A tensor found to be a layer's weight, or a view of it.

    Attributes:
        layer: The layer.
        copy: Index of the expert that the view begins with; 0 for a plain layer.
        stable: The tensor shares memory with a parameter whose version counter can be trusted.
        picked: Which experts' matrices the tensor holds copies of; None where it is the weight.
    """

    layer: Layer
    copy: int
    stable: bool
    picked: Picked | None = None


class WeightTable:
    """Finds the layer of a weight by the storage that it shares with a parameter.

    Storage, not identity, because models multiply with views: transposes, experts' slices, chunks
    of packed projections. A storage that serves several layers (tied weights) belongs to the one
    whose module is running. Parameters are looked up again before each forward of their module:
    sharded models swap them.

    Attributes:
        attention_forwards: How many forward passes of modules with attention have begun.
    """

    def __init__(self, model: nn.Module, layers: tuple[Layer, ...]) -> None:
        self._model = model
        self._by_module: dict[str, list[Layer]] = defaultdict(list)
        self._by_storage: dict[int, list[tuple[Layer, torch.Tensor]]] = defaultdict(list)
        self._running: list[str] = []
        self._sharded: set[Layer] = set()
        self._gathers: StorageNotes[Gather] = StorageNotes()
        self._attention = {layer.module: layer for layer in layers if layer.is_attention}
        self.attention_forwards = 0
        for layer in layers:
            self._by_module[layer.module].append(layer)
            self._note(layer)

    def _note(self, layer: Layer) -> None:
        for name in layer.parameters:
            owner, _, attribute = name.rpartition(".")
            parameter = getattr(self._model.get_submodule(owner), attribute)
            if hasattr(parameter, "device_mesh"):
                self._sharded.add(layer)
                continue
            found = self._by_storage[parameter.untyped_storage()._cdata]
            if all(known is not layer for known, _ in found):
                found.append((layer, parameter))

    def find(self, tensor: Any) -> Match | None:
        """The layer that a tensor is the weight of; None for any other object."""
        import torch

        if not isinstance(tensor, torch.Tensor) or hasattr(tensor, "device_mesh"):
            return None
        view = getattr(tensor, _CAST_FROM, tensor)
        try:
            found = self._by_storage.get(view.untyped_storage()._cdata)
        except NotImplementedError:
            return None
        if not found:
            return self._find_gathered(view)
        layer, parameter = self._serving(found)
        copy = 0
        if layer.copies > 1 and parameter.dim() == 3:
            copy = (view.storage_offset() - parameter.storage_offset()) // parameter.stride(0)
        return Match(layer, copy, view is tensor and layer not in self._sharded)

    def _find_gathered(self, tensor: torch.Tensor) -> Match | None:
        gather = self._gathers.get(tensor)
        picked = gather.seen_by(tensor) if gather is not None else None
        match = self.find(picked.matrices) if picked is not None else None
        return match if match is None else replace(match, picked=picked)

    def _serving(self, found: list[tuple[Layer, torch.Tensor]]) -> tuple[Layer, torch.Tensor]:
        """Of several layers with one weight, the one whose module is running."""
        if len(found) > 1:
            for path in reversed(self._running):
                for layer, parameter in found:
                    if layer.module == path:
                        return layer, parameter
        return found[0]

    def mark_cast(self, result: Any, source: Any) -> None:
        """Remembers that `result` holds a weight's values in another dtype."""
        if result is not source and self.find(source) is not None:
            setattr(result, _CAST_FROM, getattr(source, _CAST_FROM, source))

    def mark_gathered(self, source: torch.Tensor, experts: torch.Tensor, made: Any) -> None:
        """Remembers that `made` holds copies of some experts' matrices."""
        match = self.find(source)
        if match is not None and match.picked is None and match.layer.copies > 1:
            self._gathers.put(made, Gather.of(source, experts, made))

    def running_attention(self) -> Layer | None:
        """The attention whose module is running, the innermost one."""
        if not self._attention:
            return None
        return next(
            (self._attention[p] for p in reversed(self._running) if p in self._attention), None
        )

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follows which covered modules run; undone on exit."""

        def enter(path: str) -> Any:
            def hook(module: nn.Module, args: Any) -> None:
                self._running.append(path)
                self.attention_forwards += path in self._attention
                if self._sharded:
                    for layer in self._by_module[path]:
                        self._note(layer)

            return hook

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._running.pop()

        with ExitStack() as undo:
            for path in self._by_module:
                module = self._model.get_submodule(path)
                handle = module.register_forward_pre_hook(enter(path))
                undo.callback(handle.remove)
                undo.callback(module.register_forward_hook(leave, always_call=True).remove)
            undo.callback(self._running.clear)
            undo.callback(self._gathers.clear)
            yield
