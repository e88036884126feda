"""The Triton kernels in the interpreter, and on a GPU where there is one."""

import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import triton
from torch.utils import _pytree as pytree

from qrole_kernels import cuda

INTERPRETS = triton.knobs.runtime.interpret
EVERYDAY = {"randn", "equal", "zeros", "mix", "rowmix", "denormal", "tiny", "onehot", "row1"}
"""Known answers that `test_bits` goes over too; the interpreter is slow."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the interpreter's tests where kernels are compiled; pytest counts them."""
    for item in items:
        if not EVERYDAY.isdisjoint(_words(item)) and item.path.name == "test_golden.py":
            item.add_marker(pytest.mark.slow)
        # numpy, which computes in the interpreter, warns where IEEE arithmetic has an answer.
        item.add_marker(
            pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
        )
    if INTERPRETS:
        return
    interpreted = [
        item
        for item in items
        if isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and item.callspec.params.get("device") == "interpreter"
    ]
    config.hook.pytest_deselected(items=interpreted)
    items[:] = [item for item in items if item not in interpreted]


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
        return lambda *args, **kwargs: self.call(getattr(cuda, name), *args, **kwargs)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        there = pytree.tree_map_only(torch.Tensor, self._move, (args, kwargs))
        with numpy.errstate(all="ignore"):
            result = function(*there[0], **there[1])
        return pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), result)

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        # A copy would make a transposed view contiguous.
        return tensor.t().to(self.device).t() if tensor.dim() == 2 else tensor.to(self.device)


@pytest.fixture
def kernels(device: torch.device) -> OnDevice:
    """The functions under test."""
    return OnDevice(device)
