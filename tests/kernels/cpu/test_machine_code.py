"""What compiled code must not contain, for every target, whether this machine runs it or not."""

import importlib
import pkgutil
import re

import pytest

from qrole_kernels import cpu
from qrole_kernels.cpu.jit import KernelFamily
from qrole_kernels.cpu.targets import LEVELS
from tests.kernels.cpu.every_kernel import VARIANTS, every_variant

INSTRUCTION = re.compile(r"^\t([a-z]\w*)", re.MULTILINE)
CONTRACTED = re.compile(r"vfn?m(add|sub)")
REGISTERS = {"sse2": "%xmm", "avx2": "%ymm", "avx512": "%zmm"}


@pytest.mark.parametrize("level", list(LEVELS))
def test_no_contraction_and_no_calls(level):
    """A fused multiply-add rounds once where the definition rounds twice; a call needs a linker."""
    for family, variant in every_variant():
        name, code = family.symbol(variant), family.assembly(LEVELS[level], *variant)
        instructions = set(INSTRUCTION.findall(code))
        assert {i for i in instructions if i.startswith(("mov", "vmov"))}, name
        assert not {i for i in instructions if CONTRACTED.match(i)}, name
        assert not {i for i in instructions if i.startswith(("call", "rcp", "vrcp"))}, name
        assert REGISTERS[level] in code, name


def test_every_kernel_is_listed():
    names = [info.name for info in pkgutil.iter_modules(cpu.__path__) if info.name != "fallback"]
    modules = [importlib.import_module(f"qrole_kernels.cpu.{name}") for name in names]
    found = [v for module in modules for v in vars(module).values() if isinstance(v, KernelFamily)]
    assert set(found) == set(VARIANTS)
