"""The steps of attention that is written out: from the first product to the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from qrole.execute.arguments import by_position, writes

__all__ = ["Product", "Steps", "Weights", "operands_of"]

_PRODUCTS = frozenset(
    {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm}
)
_ADDED = frozenset({torch.baddbmm, torch.Tensor.baddbmm})


@dataclass(frozen=True, eq=False)
class Product:
    """A product of two tensors that are no weights, `beta * added + alpha * (left @ right)`.

    Attributes:
        left: (..., Q, D).
        right: (..., D, K).
        added: Broadcasts to (..., Q, K); None for the product alone.
        beta: Factor of what is added.
        alpha: Factor of the product.
    """

    left: torch.Tensor
    right: torch.Tensor
    added: torch.Tensor | None = None
    beta: float = 1.0
    alpha: float = 1.0

    def result(self, product: torch.Tensor) -> torch.Tensor:
        """What the function gives, the product itself being known."""
        return product if self.added is None else self.beta * self.added + self.alpha * product


@dataclass(frozen=True)
class Weights:
    """Attention weights: a tensor that one softmax made of one product.

    Attributes:
        product: The product.
    """

    product: Product


@dataclass(frozen=True, eq=False)
class _Step:
    """One function on the way.

    Attributes:
        function: The function, or the product that the way begins with.
        args: Its arguments, steps in place of tensors that other steps made.
        kwargs: Likewise.
        part: Which of several results is meant; None where there is one.
        products: The products that the result depends on.
        softmaxes: How many softmaxes it has gone through.
        version: Of the tensor, when the step was taken.
    """

    function: Any
    args: Any
    kwargs: Any
    part: int | None
    products: frozenset[Product]
    softmaxes: int
    version: int


class _Lost:
    """Stands for a tensor that came from a product by a way that cannot be taken again."""


_LOST = _Lost()


class Steps:
    """What became of the products of activations in one forward of a module with attention.

    A tensor that came from one is a step, or it is lost; all others are the same in any case.
    """

    def __init__(self) -> None:
        self._made: Any = WeakTensorKeyDictionary()

    def begin(self, product: Product, result: torch.Tensor) -> None:
        """A product of two activations, neither of which came from another one."""
        operands = (product.left, product.right)
        if any(self._find(x) for x in (*operands, product.added)):
            self._made[result] = _LOST
        elif min(x.dim() for x in operands) >= 3:
            found = frozenset({product})
            self._made[result] = _Step(product, (), {}, None, found, 0, _version(result))

    def lose(self, args: Any, kwargs: Any, result: Any) -> None:
        """A function that is computed otherwise, by the weight of a layer."""
        if any(self._find(x) for x in tree_leaves((args, kwargs))):
            self._lost(result, "")

    def weights(self, tensor: torch.Tensor) -> Weights | str | None:
        """Whether a tensor is attention weights; why it cannot be made again if it is not."""
        step = self._find(tensor)
        if not isinstance(step, _Step) or not step.softmaxes:
            return None
        if len(step.products) > 1 or step.softmaxes > 1:
            return "attention weights made of several products"
        return Weights(*step.products)

    def take(self, function: Any, args: Any, kwargs: Any, result: Any) -> str:
        """Any other function; gives the reason if the way ends here for one that is known."""
        leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        written = args[0] if args and writes(function) else None
        found = [self._find(x, written=x is written) for x in leaves]
        if not any(found):
            return ""
        if written is not None and written.is_inference():
            self._made.clear()  # Views cannot be told of the write: such tensors count none.
            return "attention weights written to in inference mode"
        made = args[0] if result is None else result
        if _LOST in found or _hides_gradients(leaves):
            return self._lost(made, "")
        steps = [step for step in found if isinstance(step, _Step)]
        softmaxes = max(step.softmaxes for step in steps)
        name = getattr(function, "__name__", "")
        if "dropout" in name and not _idle(args, kwargs):
            if name != "dropout" or written is not None:
                return self._lost(made, name)
            function, args, kwargs = torch.mul, (args[0], _kept(args, kwargs, result)), {}
        if name == "einsum":
            return self._lost(made, "einsum of the attention weights" if softmaxes else "")
        if name == "softmax" and not _over_keys(args, kwargs):
            return self._lost(made, "a softmax over another dimension than the last")
        # Taken again, a write to a tensor that no step made would be one to the model's own.
        foreign = written is not None and self._find(written, written=True) is None
        if foreign or "out" in kwargs or (result is None and written is None):
            return self._lost(made, "")
        inner, named = tree_map(lambda x: self._find(x, written=x is written) or x, (args, kwargs))
        products = frozenset[Product]().union(*(step.products for step in steps))
        step = _Step(function, inner, named, None, products, softmaxes + (name == "softmax"), 0)
        parts = enumerate(made) if isinstance(made, (tuple, list)) else [(None, made)]
        for part, tensor in parts:
            if isinstance(tensor, torch.Tensor):
                self._made[tensor] = replace(step, part=part, version=_version(tensor))
        return ""

    def _lost(self, made: Any, reason: str) -> str:
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._made[tensor] = _LOST
        return reason

    def again(
        self,
        tensor: torch.Tensor,
        logits: torch.Tensor,
        before_softmax: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """A tensor made by the same steps from another product.

        Args:
            tensor: Attention weights, see `weights`.
            logits: What the product is now.
            before_softmax: Applied to the softmax's input.
        """
        known: dict[int, Any] = {}

        def value(x: Any) -> Any:
            return made_by(x) if isinstance(x, _Step) else x

        def made_by(step: _Step) -> Any:
            if isinstance(step.function, Product):
                return step.function.result(logits)
            key = id(step.args)
            if key not in known:
                args, kwargs = tree_map(value, (step.args, step.kwargs))
                if getattr(step.function, "__name__", "") == "softmax":
                    args = (before_softmax(args[0]), *args[1:])
                result = step.function(*args, **kwargs)
                known[key] = args[0] if result is None else result
            return known[key] if step.part is None else known[key][step.part]

        made: torch.Tensor = made_by(self._made[tensor])
        return made

    def _find(self, x: Any, *, written: bool = False) -> _Step | _Lost | None:
        """The step that made a tensor; None where it came from no product.

        Args:
            x: Maybe a tensor.
            written: The function at hand may have written to it, once.
        """
        step = self._made.get(x) if isinstance(x, torch.Tensor) else None
        if isinstance(step, _Step) and not 0 <= _version(x) - step.version <= written:
            return _LOST  # Something has written to it since, through a view.
        found: _Step | _Lost | None = step
        return found


def operands_of(function: Any, args: Any, kwargs: Any) -> Product | None:
    """The operands of a product of two tensors; None for any other function."""
    if function not in _PRODUCTS and function not in _ADDED:
        return None
    operands, options = by_position(args, kwargs)
    if function in _PRODUCTS:
        return Product(*operands) if len(operands) == 2 and not options else None
    if len(operands) != 3 or not options.keys() <= {"beta", "alpha"}:
        return None
    added, left, right = operands
    return Product(left, right, added, **options)


def _version(x: torch.Tensor) -> int:
    return 0 if x.is_inference() else x._version  # Such tensors count no versions.


def _idle(args: Any, kwargs: Any) -> bool:
    """Whether a dropout drops nothing."""
    p, train = [*args[1:3], kwargs.get("p"), kwargs.get("train")][:2]
    return not p or not train


def _kept(args: Any, kwargs: Any, dropped: torch.Tensor) -> torch.Tensor:
    """What a dropout multiplied by, so that the same elements are dropped when it is repeated."""
    x: torch.Tensor = args[0]
    p: float = args[1] if len(args) > 1 else kwargs["p"]
    return ((dropped != 0) | (x == 0)).to(x.dtype) / (1 - p)


def _hides_gradients(tensors: list[torch.Tensor]) -> bool:
    """Whether gradients will not flow as the functions say: inside another autograd function."""
    return not torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _over_keys(args: Any, kwargs: Any) -> bool:
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    return dim in (-1, args[0].dim() - 1)
