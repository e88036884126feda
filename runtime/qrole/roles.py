"""Roles, requests and slots: the nouns that modules, factories and plans share.

Facts: TransformerEngine's `pytorch/quantization.py`; vocabulary of module and tensor types is open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qrole.recipes import Format

__all__ = [
    "DelayedScalingRequest",
    "Direction",
    "Gemm",
    "GemmRead",
    "QuantizerRequest",
    "QuantizerRole",
    "Slot",
    "Usage",
]


@dataclass(frozen=True)
class QuantizerRole:
    """A label that a module puts on a slot and that a factory answers.

    Attributes:
        module_type: `linear`, `grouped_linear`, `dpa`, or anything a module chooses.
        tensor_type: `input`, `weight`, `grad_output`, `qkv`, `s`, `do`, `dp`, or anything.
        name: The emitting module's name; not unique and not a key.
    """

    module_type: str = ""
    tensor_type: str = ""
    name: str = ""

    def __str__(self) -> str:
        parts = [
            f"{key}={value}"
            for key in ("module_type", "tensor_type", "name")
            if (value := getattr(self, key))
        ]
        return "|".join(parts) or "QuantizerRole()"


@dataclass(frozen=True)
class QuantizerRequest:
    """An answer that is not a quantizer yet: state that spans the slots of a module builds it."""


def _hybrid() -> Format:
    from qrole.recipes import Format

    return Format.HYBRID


@dataclass(frozen=True)
class DelayedScalingRequest(QuantizerRequest):
    """Asks for FP8 delayed scaling, whose scale and amax history live in shared buffers.

    Attributes:
        fp8_format: Element formats forward and backward; default HYBRID (E4M3, E5M2).
        margin: The scale is divided by 2**margin.
        amax_history_len: Steps that the amax history holds.
        amax_compute_algo: `max`, `most_recent`, or a callable on the history.
        scaling_factor_compute_algo: A callable; None means the built-in rule.
        reduce_amax: Take the maximum over the group's ranks.
    """

    fp8_format: Format = field(default_factory=_hybrid)
    margin: int = 0
    amax_history_len: int = 1024
    amax_compute_algo: str | Callable[..., object] = "max"
    scaling_factor_compute_algo: Callable[..., object] | None = None
    reduce_amax: bool = True


class Direction(StrEnum):
    """Whether a slot belongs to the forward or the backward pass."""

    FORWARD = "forward"
    BACKWARD = "backward"


class Gemm(StrEnum):
    """The three products of a linear layer."""

    FPROP = "fprop"
    DGRAD = "dgrad"
    WGRAD = "wgrad"


class Usage(StrEnum):
    """Which of the two stored representations a GEMM reads."""

    ROWWISE = "rowwise"
    COLUMNWISE = "columnwise"


@dataclass(frozen=True)
class GemmRead:
    """One GEMM that reads a slot's tensor, and in which representation."""

    gemm: Gemm
    usage: Usage

    def __str__(self) -> str:
        return f"{self.gemm}.{'row' if self.usage is Usage.ROWWISE else 'col'}"


_READS: dict[str, tuple[GemmRead, ...]] = {
    "input": (GemmRead(Gemm.FPROP, Usage.ROWWISE), GemmRead(Gemm.WGRAD, Usage.COLUMNWISE)),
    "weight": (GemmRead(Gemm.FPROP, Usage.ROWWISE), GemmRead(Gemm.DGRAD, Usage.COLUMNWISE)),
    "grad_output": (GemmRead(Gemm.DGRAD, Usage.ROWWISE), GemmRead(Gemm.WGRAD, Usage.COLUMNWISE)),
}


@dataclass(frozen=True)
class Slot:
    """One place that asks for a quantizer; `(module, direction, index)` identifies it.

    Invariants: `index >= 0`; `copies >= 1`.

    Attributes:
        module: Dotted path of the module in the model, `""` for the model itself.
        direction: Forward or backward.
        index: Position in the module's slots of that direction.
        role: What the factory is called with; None is passed on as None (boundary slots).
        module_class: Qualified class name of the module.
        te_name: The name that TransformerEngine would put into the role.
        operand: What the tensor is to its GEMMs: `input`, `weight`, `grad_output`, `output`,
            `grad_input`, an attention tensor (`qkv`, `o`, `s`, `do`, `dp`, `dqkv`), or `""`.
        group: Which of the module's linear layers (`""`, `fc1`, `fc2`); slots of equal module and
            group feed the same three GEMMs.
        consumed: False where a quantizer is built and nothing ever reads it.
        copies: Number of identical slots folded into this one (experts); the factory is called
            that many times.
        shape: Shape of one copy's tensor, when known; `(out, in)` for weights.
        parameters: Names of the parameters that hold the tensor, for weights.
        bare: The module gave no list of roles, so the role is a substitute.
    """

    module: str
    direction: Direction
    index: int
    role: QuantizerRole | None
    module_class: str = ""
    te_name: str = ""
    operand: str = ""
    group: str = ""
    consumed: bool = True
    copies: int = 1
    shape: tuple[int, ...] | None = None
    parameters: tuple[str, ...] = ()
    bare: bool = False

    def __post_init__(self) -> None:
        assert self.index >= 0, "index >= 0"
        assert self.copies >= 1, "copies >= 1"

    @property
    def id(self) -> str:
        """`module:direction[index]`, unique within a model; what `qrole why` takes."""
        return f"{self.module or '.'}:{self.direction}[{self.index}]"

    @property
    def reads(self) -> tuple[GemmRead, ...]:
        """The GEMMs that read the slot's tensor; empty where it is not consumed."""
        return _READS.get(self.operand, ()) if self.consumed else ()
