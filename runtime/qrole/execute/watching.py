"""Quantizers that tell a run of everything they quantize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qrole.errors import UsageError
from qrole.quantizers.tensor import QuantizedTensor
from qrole.roles import Slot

if TYPE_CHECKING:
    import torch

    from qrole.execute.state import PlanState

__all__ = ["Watch", "outside_error", "watch"]


@dataclass(frozen=True)
class Watch:
    """Whose tensors a quantizer sees.

    Attributes:
        state: Knows the run, which is told.
        slot: The slot.
        copy: Index of the expert.
        foreign: The module knows nothing of quantizers, and nothing is quantized outside a run.
    """

    state: PlanState
    slot: Slot
    copy: int
    foreign: bool = False


def watch(quantizer: Any, by: Watch) -> None:
    """Has a quantizer tell, in place of whom it told before."""
    if not hasattr(quantizer, "quantize_unwatched"):
        quantizer.__class__ = _watched_class(type(quantizer))
    quantizer._watch = by


def outside_error(name: str) -> UsageError:
    """The backward pass of a layer ran after its run had ended."""
    return UsageError(
        f"the backward pass of {name} ran after the plan's context was left",
        expected="forward and backward inside the same `with executing(...)`",
        hint="call loss.backward() inside the block",
    )


def _watched_class(cls: Any) -> Any:
    """The class with a `quantize` that tells; of the same name, because reports show it."""
    if cls not in _watched:
        plain = cls.quantize

        def quantize(
            self: Any, tensor: Any, *, generator: torch.Generator | None = None, **options: Any
        ) -> Any:
            by: Watch = self._watch
            run = by.state.run
            if run is None and by.foreign:
                raise outside_error(by.slot.module or ".")
            if run is None or options or isinstance(tensor, QuantizedTensor):
                return plain(self, tensor, generator=generator, **options)
            return run.quantize_own(self, by.slot, by.copy, tensor)

        members = {"quantize": quantize, "quantize_unwatched": plain}
        _watched[cls] = type(cls.__name__, (cls,), members)
    return _watched[cls]


_watched: dict[Any, Any] = {}
