"""What a checkpoint says it is: its layout, and the scheme of every module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from qrole.checkpoint.headers import TensorInfo
from qrole.checkpoint.verification.report import Problem

__all__ = ["Declared", "weight_modules"]

#: Names under which a layout may store a module's codes.
_CODES = ("weight", "weight_packed")


@dataclass
class Declared:
    """The declaration of a checkpoint, resolved against the modules that it holds.

    Attributes:
        layout: Name of the layout.
        schemes: Scheme of each module that is declared quantized.
        ignored: Modules that are declared not quantized.
        problems: What is wrong with the declaration itself.
    """

    layout: str
    schemes: dict[str, str] = field(default_factory=dict)
    ignored: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def complain(self, kind: str, where: str, message: str) -> None:
        """Adds a problem."""
        self.problems.append(Problem(kind, where, message))


def weight_modules(tensors: Mapping[str, TensorInfo]) -> list[str]:
    """Modules that hold a matrix, quantized or not, in the order of the tensors."""
    return list(dict.fromkeys(_module(n) for n in _matrices(tensors)))


def _matrices(tensors: Mapping[str, TensorInfo]) -> Iterable[str]:
    for name, info in tensors.items():
        if len(info.shape) >= 2 and name.rpartition(".")[2] in _CODES:
            yield name


def _module(tensor: str) -> str:
    return tensor.rpartition(".")[0]
