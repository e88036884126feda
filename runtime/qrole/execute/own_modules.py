"""Modules that quantize by themselves (TransformerEngine style), run by a plan and observed.

They build quantizers from the recipe of `qrole.autocast` and multiply through `qrole.gemm`. For the
time of a run their quantizers are those of the plan, and both places tell the observer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from qrole import gemm
from qrole.autocasting import autocast
from qrole.errors import UsageError
from qrole.execute.products import operands_that_meet
from qrole.execute.state import PlanState, copied
from qrole.execute.watching import Watch, watch
from qrole.modules.attention.slots import AttentionModule
from qrole.modules.ops import BasicLinear, BasicOperation
from qrole.plans import Plan
from qrole.quantizers.base import Quantizer
from qrole.quantizers.tensor import QuantizedTensor
from qrole.roles import Direction, Gemm, Usage

if TYPE_CHECKING:
    from qrole.execute.layers import Layer
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
        for layer in run.layers:
            if layer.is_attention and layer.module in modules:
                undo.callback(_observed_attention(modules[layer.module], layer, run).remove)
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
    asked = {direction: state.asked(path, direction) for direction in Direction}
    state.answers[:] = [copied(answer) for slots in asked.values() for _, _, answer in slots]
    quantizers = _built(path, module, state)
    for direction, slots in asked.items():
        for (slot, copy, _), quantizer in zip(slots, quantizers[direction], strict=True):
            watch(quantizer, Watch(state, slot, copy))


def _built(path: str, module: Any, state: PlanState) -> dict[Direction, list[Quantizer]]:
    """The quantizers that a module or a fusible op builds, in slot order."""
    if isinstance(module, AttentionModule):
        module.partial_attention = True
    if hasattr(module, "init_fp8_meta_tensors") and hasattr(module, "quantizers"):
        module.init_fp8_meta_tensors(state.recipe)
        return {direction: module.quantizers[key] for direction, key in _DIRECTIONS.items()}
    if isinstance(module, BasicLinear):
        module.plain_neighbours = True
    if isinstance(module, BasicOperation):
        device = next((p.device for p in module.parameters()), None)
        module.reset_recipe_state(recipe=state.recipe, device=device)
        return {direction: module.built_quantizers(direction.value) for direction in Direction}
    raise UsageError(
        f"{path or '.'} is a {type(module).__name__}, which builds its quantizers in a way "
        "that a run cannot take over",
        expected="ops of qrole, or modules with init_fp8_meta_tensors() and `quantizers`",
        hint="use qrole's module of that kind, or leave this part out of the model",
    )


def _observed_attention(module: nn.Module, layer: Layer, run: Execution) -> RemovableHandle:
    """Tells the run of an attention's results."""

    def hook(module: nn.Module, args: Any, result: Any) -> None:
        run.saw_attention(layer, result[0] if isinstance(result, tuple) else result)

    return module.register_forward_hook(hook)


def _met(left: Any, left_usage: Usage, right: Any, right_usage: Usage) -> tuple[Any, Any]:
    """Operands of which a plan, unlike a module of its own, may leave one in high precision."""
    if isinstance(left, QuantizedTensor) and isinstance(right, QuantizedTensor):
        return operands_that_meet(left, left_usage, right, right_usage)
    return left, right


@contextmanager
def _observed_products(run: Execution) -> Iterator[None]:
    """Tells the run of products whose operands it saw being quantized."""
    plain = {name: getattr(gemm, name) for name in ("fprop", "dgrad", "wgrad")}

    def fprop(x: Any, w: Any, bias: Any = None, **options: Any) -> torch.Tensor:
        met = _met(x, Usage.ROWWISE, w, Usage.ROWWISE)
        result: torch.Tensor = plain["fprop"](*met, bias, **options)
        run.saw_product(Gemm.FPROP, x, w, result, bias)
        return result

    def dgrad(dy: Any, w: Any, **options: Any) -> torch.Tensor:
        met = _met(dy, Usage.ROWWISE, w, Usage.COLUMNWISE)
        result: torch.Tensor = plain["dgrad"](*met, **options)
        run.saw_product(Gemm.DGRAD, dy, w, result, None)
        return result

    def wgrad(dy: Any, x: Any, **options: Any) -> torch.Tensor:
        met = _met(dy, Usage.COLUMNWISE, x, Usage.COLUMNWISE)
        result: torch.Tensor = plain["wgrad"](*met, **options)
        run.saw_product(Gemm.WGRAD, dy, x, result, None)
        return result

    try:
        gemm.fprop, gemm.dgrad, gemm.wgrad = fprop, dgrad, wgrad
        yield
    finally:
        for name, function in plain.items():
            setattr(gemm, name, function)
