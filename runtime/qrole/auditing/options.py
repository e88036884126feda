"""What the user asks of an audit, and how codes are selected and ignored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from qrole.auditing.registry import codes
from qrole.errors import UsageError

__all__ = ["TARGETS", "AuditOptions", "Engine", "check_target", "expand_codes"]


class Engine(StrEnum):
    """Software that loads written checkpoints."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "trtllm"
    TRANSFORMERS = "transformers"


@dataclass(frozen=True)
class AuditOptions:
    """What is asked of an audit.

    Attributes:
        select: Codes or prefixes of codes (`QR3`) to look for; empty means all.
        ignore: Codes or prefixes to leave out.
        module_ignores: Codes or prefixes to leave out, by glob on module paths.
        target: `sm_NN` of the GPU to run on; None checks no hardware.
        engines: Engines that must load the result.
        tensor_parallel: Number of GPUs that share every layer, >= 1.
        fp8_dpa: Attention runs in FP8 (`CustomRecipe(fp8_dpa=True)`); attention slots are
            not read otherwise.
        sequence_length: Tokens of a sequence, for the sizes of attention; None is not checked.
        inference: Only the forward pass matters: the plan will be exported, not trained with.
        weights: Read the weights' values where they are in files.
        settings_file: pyproject.toml that the options come from; None for none.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    module_ignores: dict[str, tuple[str, ...]] = field(default_factory=dict)
    target: str | None = None
    engines: tuple[Engine, ...] = ()
    tensor_parallel: int = 1
    fp8_dpa: bool = False
    sequence_length: int | None = None
    inference: bool = False
    weights: bool = False
    settings_file: str | None = None

    def __post_init__(self) -> None:
        if self.target is not None:
            check_target(self.target)
        if self.tensor_parallel < 1:
            raise UsageError(
                f"tensor_parallel is {self.tensor_parallel}",
                expected="a number of GPUs, 1 or more",
                hint="leave it out where layers are not split",
            )
        for names in (self.select, self.ignore, *self.module_ignores.values()):
            expand_codes(names)

    def selected(self) -> frozenset[str]:
        """Names of the codes to look for; `ignore` is applied to their findings later."""
        return expand_codes(self.select) if self.select else frozenset(codes())


def expand_codes(names: Iterable[str]) -> frozenset[str]:
    """The codes that names and prefixes mean.

    Raises:
        UsageError: One of them means none.
    """
    known = codes()
    found: set[str] = set()
    for name in names:
        matching = [code for code in known if code.startswith(name.strip().upper())]
        if not matching or not name.strip():
            raise UsageError(
                f"no code starts with {name!r}",
                expected="codes such as QR304, or prefixes such as QR3",
                hint="`qrole explain` without a code lists all of them",
            )
        found.update(matching)
    return frozenset(found)


#: Compute capabilities of NVIDIA's GPUs since Volta, without their dot.
TARGETS = {
    70: "Volta",
    75: "Turing",
    80: "A100",
    86: "GeForce Ampere",
    87: "Orin",
    89: "Ada",
    90: "Hopper",
    100: "Blackwell",
    101: "Thor, before CUDA 13",
    103: "Blackwell Ultra",
    110: "Thor",
    120: "RTX Blackwell",
    121: "DGX Spark",
}


def check_target(target: str) -> int:
    """The number in `sm_NN`.

    Raises:
        UsageError: It is not written that way, or there is no such GPU.
    """
    found = re.fullmatch(r"sm_(\d{2,3})[af]?", target)
    if found is None or int(found[1]) not in TARGETS:
        raise UsageError(
            f"there is no target {target!r}",
            expected="one of " + ", ".join(f"sm_{n} ({name})" for n, name in TARGETS.items()),
            hint="the GPU's compute capability without its dot, after sm_",
        )
    return int(found[1])
