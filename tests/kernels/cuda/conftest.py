"""The Triton kernels in the interpreter, and on a GPU where there is one."""

import importlib
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

FOLDER = Path(__file__).parent
# Triton exists on Linux only.
collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]
EVERYDAY = {"randn", "equal", "zeros", "mix", "rowmix", "denormal", "tiny", "onehot", "row1"}
"""Known answers that `test_bits` goes over too; the interpreter is slow."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark this folder's tests; deselect the interpreter's where kernels are compiled."""
    here = [item for item in items if FOLDER in item.path.parents]
    for item in here:
        # numpy, which computes in the interpreter, warns where IEEE arithmetic has an answer.
        item.add_marker(
            pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
        )
        if item.path.name == "test_golden.py" and not EVERYDAY.isdisjoint(_words(item)):
            item.add_marker(pytest.mark.slow)
    if not here or importlib.import_module("triton").knobs.runtime.interpret:
        return
    interpreted = [item for item in here if _device_of(item) == "interpreter"]
    config.hook.pytest_deselected(items=interpreted)
    items[:] = [item for item in items if item not in interpreted]


def _device_of(item: pytest.Item) -> object:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("device") if callspec else None


def _words(item: pytest.Item) -> set[str]:
    return set(re.split(r"[-/_\[]", item.name))


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device("cuda" if request.param == "cuda" else "cpu")


class OnDevice:
    """The functions of `qrole_kernels.cuda` on copies of their arguments; results on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(importlib.import_module("qrole_kernels.cuda"), name)

        def run(*args: Any, **kwargs: Any) -> Any:
            there = pytree.tree_map_only(torch.Tensor, lambda t: t.to(self.device), (args, kwargs))
            result = function(*there[0], **there[1])
            return pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), result)

        return run


@pytest.fixture
def kernels(device: torch.device) -> OnDevice:
    """The functions under test."""
    return OnDevice(device)
