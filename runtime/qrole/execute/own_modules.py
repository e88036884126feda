"""Modules that quantize by themselves (TransformerEngine style), run by a plan and observed.

They build quantizers from the recipe of `qrole.autocast` and multiply through `qrole.gemm`. For the
time of a run their quantizers are those of the plan, and both places tell the observer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from qrole import gemm
from qrole.autocasting import autocast
from qrole.errors import UsageError
from qrole.execute.state import PlanState, copied
from qrole.plans import Plan
from qrole.quantizers.tensor import QuantizedTensor
from qrole.roles import Direction, Gemm, Slot

if TYPE_CHECKING:
    from qrole.execute.run import Execution

__all__ = ["own_modules", "running_own_modules"]

_DIRECTIONS = {Direction.FORWARD: "scaling_fwd", Direction.BACKWARD: "scaling_bwd"}


def own_modules(model: nn.Module, plan: Plan) -> dict[str, nn.Module]:
    """The plan's modules that build their quantizers themselves, by path."""
    found = {}
    for path in dict.fromkeys(decision.slot.module for decision in plan):
        module = model.get_submodule(path)
        if callable(getattr(module, "get_quantizer_roles", None)):
            found[path] = module
    return found


@contextmanager
def running_own_modules(
    modules: dict[str, nn.Module], state: PlanState, run: Execution
) -> Iterator[None]:
    """Gives the modules the plan's quantizers; they are as before when the block is left."""
    if not modules:
        yield
        return
    with ExitStack() as undo:
        for path, module in modules.items():
            undo.enter_context(_swapped(module, state.kept.setdefault(path, {})))
            if path not in state.initialized:
                _initialized(path, module, state)
                state.initialized.add(path)
        state.run = run
        undo.callback(setattr, state, "run", None)
        undo.enter_context(_observed_products(run))
        undo.enter_context(autocast(enabled=True, recipe=state.recipe))
        yield


@contextmanager
def _swapped(module: nn.Module, kept: dict[str, Any]) -> Iterator[None]:
    """Exchanges a module's plain attributes for those kept from the run before."""
    before = _plain_attributes(module)
    module.__dict__.update(_shallow(kept))
    try:
        yield
    finally:
        after = _plain_attributes(module)
        kept.clear()
        kept.update(after)
        for name in after.keys() - before.keys():
            del module.__dict__[name]
        module.__dict__.update(before)


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    torch_owned = nn.Module().__dict__.keys()
    own = {k: v for k, v in module.__dict__.items() if k not in torch_owned}
    return _shallow(own)


def _shallow(attributes: dict[str, Any]) -> dict[str, Any]:
    """Containers are copied, two levels deep, so that what a run puts into them stays its own."""

    def copy(value: Any, depth: int) -> Any:
        if depth and type(value) is dict:
            return {k: copy(v, depth - 1) for k, v in value.items()}
        return list(value) if depth and type(value) is list else value

    return {name: copy(value, 2) for name, value in attributes.items()}


def _initialized(path: str, module: Any, state: PlanState) -> None:
    """Has a module build its quantizers from the plan's answers, and makes each of them tell."""
    if not hasattr(module, "init_fp8_meta_tensors") or not hasattr(module, "quantizers"):
        raise UsageError(
            f"{path or '.'} is a {type(module).__name__}, which builds its quantizers in a way "
            "that a run cannot take over",
            expected="modules with init_fp8_meta_tensors() and `quantizers`, as qrole.Linear has",
            hint="use the module in place of the fusible op, or leave this part out of the model",
        )
    asked = {direction: state.asked(path, direction) for direction in _DIRECTIONS}
    answers = [copied(answer) for slots in asked.values() for _, _, answer in slots]
    state.answers[:] = answers
    module.init_fp8_meta_tensors(state.recipe)
    for direction, key in _DIRECTIONS.items():
        for (slot, copy, _), quantizer in zip(
            asked[direction], module.quantizers[key], strict=True
        ):
            _watch(quantizer, _Watch(state, slot, copy))


@dataclass
class _Watch:
    """Whose tensors a quantizer sees.

    Attributes:
        state: Knows the run, which is told.
        slot: The slot.
        copy: Index of the expert.
    """

    state: PlanState
    slot: Slot
    copy: int


def _watch(quantizer: Any, watch: _Watch) -> None:
    quantizer.__class__ = _watched_class(type(quantizer))
    quantizer._watch = watch


def _watched_class(cls: Any) -> Any:
    """The class with a `quantize` that tells; of the same name, because reports show it."""
    if cls not in _watched:
        plain = cls.quantize

        def quantize(
            self: Any, tensor: Any, *, generator: torch.Generator | None = None, **options: Any
        ) -> Any:
            watch: _Watch = self._watch
            if watch.state.run is None or options or isinstance(tensor, QuantizedTensor):
                return plain(self, tensor, generator=generator, **options)
            return watch.state.run.quantize_own(self, watch.slot, watch.copy, tensor)

        members = {"quantize": quantize, "quantize_unwatched": plain}
        _watched[cls] = type(cls.__name__, (cls,), members)
    return _watched[cls]


_watched: dict[Any, Any] = {}


@contextmanager
def _observed_products(run: Execution) -> Iterator[None]:
    """Tells the run of products whose operands it saw being quantized."""
    plain = {name: getattr(gemm, name) for name in ("fprop", "dgrad", "wgrad")}

    def fprop(x: Any, w: Any, bias: Any = None, **options: Any) -> torch.Tensor:
        result: torch.Tensor = plain["fprop"](x, w, bias, **options)
        run.saw_product(Gemm.FPROP, x, w, result, bias)
        return result

    def dgrad(dy: Any, w: Any, **options: Any) -> torch.Tensor:
        result: torch.Tensor = plain["dgrad"](dy, w, **options)
        run.saw_product(Gemm.DGRAD, dy, w, result, None)
        return result

    def wgrad(dy: Any, x: Any, **options: Any) -> torch.Tensor:
        result: torch.Tensor = plain["wgrad"](dy, x, **options)
        run.saw_product(Gemm.WGRAD, dy, x, result, None)
        return result

    try:
        gemm.fprop, gemm.dgrad, gemm.wgrad = fprop, dgrad, wgrad
        yield
    finally:
        for name, function in plain.items():
            setattr(gemm, name, function)
