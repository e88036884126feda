"""Which implementation multiplies two quantized operands on a CUDA device: what decides it.

torch's scaled matmul (cuBLAS) comes first, triton's kernels second, the emulation last. Free of
triton, so that the answer can be had anywhere.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch

from qrole_kernels.operand import HIGH_PRECISION, PACKED, Operand

INTERPRETER = 0
"""What stands for the compute capability where triton's interpreter runs its kernels."""

Version = tuple[int, int]


class Backend(StrEnum):
    """What multiplies."""

    TORCH = "torch"
    TRITON = "triton"
    EMULATION = "emulation"


@dataclass(frozen=True)
class Condition:
    """Where a backend multiplies a family.

    Attributes:
        elements: The pairs of element formats, left and right.
        since: The first compute capability, 10 * major + minor.
        until: The first one that no longer does; None: all later ones do.
        cuda: The CUDA that torch is built with, at least; None: any torch does.
    """

    backend: Backend
    family: str
    elements: frozenset[tuple[str, str]]
    since: int
    until: int | None = None
    cuda: Version | None = None

    def holds(
        self, family: str, elements: tuple[str, str], arch: int, cuda: Version | None
    ) -> bool:
        """Whether the backend multiplies these."""
        if family != self.family or elements not in self.elements:
            return False
        if arch < self.since or (self.until is not None and arch >= self.until):
            return False
        return self.cuda is None or (cuda is not None and cuda >= self.cuda)


_E4M3 = frozenset({("e4m3", "e4m3")})
_FP8 = _E4M3 | {("e4m3", "e5m2"), ("e5m2", "e4m3")}
_E2M1 = frozenset({("e2m1", "e2m1")})

# torch's MXFP4 rounds its sums to bf16, which is why triton is its first.
CONDITIONS = (
    Condition(Backend.TORCH, "fp8_tensor", _FP8, 89, cuda=(12, 1)),
    Condition(Backend.TORCH, "fp8_block", _E4M3, 90, until=100, cuda=(12, 9)),
    Condition(Backend.TORCH, "mxfp8", _E4M3, 100, cuda=(12, 8)),
    Condition(Backend.TORCH, "nvfp4", _E2M1, 100, cuda=(12, 8)),
    Condition(Backend.TRITON, "fp8_tensor", _FP8, 89),
    Condition(Backend.TRITON, "fp8_block", _FP8, 89),
    Condition(Backend.TRITON, "mxfp8", _FP8, 100),
    Condition(Backend.TRITON, "mxfp4", _E2M1, 100),
    Condition(Backend.TRITON, "nvfp4", _E2M1, 80),
)
"""The first that holds decides."""


def backends(left: Operand, right: Operand, arch: int, cuda: Version | None) -> list[Backend]:
    """All that multiply two operands which `check_pairing` accepts, the preferred one first.

    Args:
        left: The left operand.
        right: The right operand.
        arch: 10 * major + minor of the compute capability, or `INTERPRETER`.
        cuda: What `scaled_mm_cuda` says of the torch in question.
    """
    if left.family == HIGH_PRECISION:
        return []
    if arch == INTERPRETER:
        return [Backend.TRITON, Backend.EMULATION]
    elements = _element(left), _element(right)
    able = (c.backend for c in CONDITIONS if c.holds(left.family, elements, arch, cuda))
    return [*able, Backend.EMULATION]


def scaled_mm_cuda() -> Version | None:
    """The CUDA of this torch where it has a public scaled matmul (2.10 and later), else None."""
    version = torch.version.cuda
    if version is None or not hasattr(torch.nn.functional, "scaled_mm"):
        return None
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _element(operand: Operand) -> str:
    return "e2m1" if operand.format in PACKED else operand.element
