"""Intercepts the torch functions that multiply by a covered weight."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from qrole.execute.arguments import by_position, writes
from qrole.execute.gathers import INDEXINGS, gathered_rows
from qrole.execute.lowering import lowering_of

if TYPE_CHECKING:
    from qrole.execute.run import Execution

__all__ = ["PlanMode"]

_GUARDS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_CASTS = frozenset(
    {
        torch.Tensor.to,
        torch.Tensor.type,
        torch.Tensor.type_as,
        torch.Tensor.float,
        torch.Tensor.half,
        torch.Tensor.bfloat16,
        torch.Tensor.double,
        torch.Tensor.contiguous,
    }
)
_LOOKS = frozenset({"__get__", "embedding", "size", "dim", "numel", "detach", "__set__"})


class PlanMode(TorchFunctionMode):
    """Sends products with covered weights to the run; every other function goes its own way."""

    def __init__(self, run: Execution) -> None:
        super().__init__()
        self._run = run
        self._follow = any(layer.is_attention for layer in run.layers)
        self._entered: list[FunctionType] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Called by torch for every function while the mode is on."""
        kwargs = kwargs or {}
        written = args[0] if args and writes(function) else kwargs.get("out")
        if isinstance(written, torch.Tensor):
            self._run.before_change(written)
        lowering = lowering_of(function)
        if lowering is not None:
            operands, options = by_position(args, kwargs)
            result = lowering(self._run, *operands, **options)
            if result is not NotImplemented:
                if self._follow:
                    self._run.attention.lose(args, kwargs, result)
                return result
        elif function not in _CASTS and _guarded(function) and function not in self._entered:
            return self._enter(function, args, kwargs)
        result = function(*args, **kwargs)
        self._note(function, args, kwargs, result)
        if not self._follow:
            return result
        return self._run.attention.saw(function, args, kwargs, result)

    def _note(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Remembers what a function made of a covered weight."""
        if function in _CASTS:
            self._run.table.mark_cast(result, args[0])
            return
        if function in INDEXINGS:
            gathered = gathered_rows(function, args, kwargs)
            if gathered is not None:
                self._run.table.mark_gathered(*gathered, result)
        self._note_reader(function, args, result)

    def _enter(self, function: FunctionType, args: Any, kwargs: Any) -> Any:
        """Runs a function that is written in Python with the mode on.

        Otherwise attention would hide its products, and `backward` those of recomputed forward
        passes. Such a function may end in a call of its own name that is written in C.
        """
        self._entered.append(function)
        try:
            with self:
                return _unguarded(function)(*args, **kwargs)
        finally:
            self._entered.pop()

    def _note_reader(self, function: Any, args: Any, result: Any) -> None:
        """Remembers functions that turn a covered weight into a new tensor unseen."""
        name = getattr(function, "__name__", str(function))
        if name in _LOOKS or not isinstance(result, torch.Tensor):
            return
        for argument in args:
            match = self._run.table.find(argument)
            if match is not None and self._run.table.find(result) is None:
                self._run.readers.setdefault(match.layer, set()).add(name)


def _guarded(function: Any) -> bool:
    return isinstance(function, FunctionType) and any(
        name in function.__code__.co_names for name in _GUARDS
    )


@functools.cache
def _unguarded(function: FunctionType) -> FunctionType:
    """The same function without its dispatch to function modes, so that its body runs under one."""
    names = dict(function.__globals__)
    names.update((guard, lambda *_: False) for guard in _GUARDS if guard in names)
    made = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made
