"""The processors that kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

import llvmlite.binding as llvm

from qrole_kernels.errors import ArgumentError


@dataclass(frozen=True)
class Target:
    """A processor as LLVM names it.

    Invariants: `cpu` is a name LLVM knows; `features` is LLVM's `+name,-name` list, empty for the
    processor's usual ones; `needs` are the features without which the code doesn't run.
    """

    cpu: str
    features: str
    needs: frozenset[str] = frozenset()

    def check_runs_here(self) -> None:
        """Check that this machine has every feature that the target needs.

        Raises:
            ArgumentError: It lacks one.
        """
        present = llvm.get_host_cpu_features()
        missing = sorted(name for name in self.needs if not present.get(name))
        if missing:
            raise ArgumentError(
                f"the target {self.cpu!r} on a processor ({llvm.get_host_cpu_name()}) without "
                + ", ".join(missing),
                "a target that this processor can run",
                f"Choose among {', '.join(runnable_levels()) or 'its own features only'}.",
            )


_AVX2 = frozenset({"avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

LEVELS = {
    "sse2": Target("x86-64", "", frozenset({"sse2"})),
    "avx2": Target("x86-64-v3", "", _AVX2),
    "avx512": Target("x86-64-v4", "", _AVX512),
}
"""The x86 instruction sets that every kernel is tested on."""


def runnable_levels() -> list[str]:
    """The names in `LEVELS` that this machine can run."""
    present = llvm.get_host_cpu_features()
    return [name for name, level in LEVELS.items() if all(present.get(f) for f in level.needs)]


def host_target() -> Target:
    """This machine's processor with all its features."""
    return Target(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
