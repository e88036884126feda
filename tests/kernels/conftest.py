"""Fixtures of the kernel tests."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from qrole_kernels import ops, reference
from tests.kernels import golden


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Iterator[golden.Case]:
    """A known-answer case; every tensor of it has to be read by the test."""
    loaded = golden.load(*request.param)
    yield loaded
    assert not loaded.unread, f"{loaded.family}/{loaded.name}: never read: {sorted(loaded.unread)}"


class _OnCuda:
    """The ops, run on CUDA copies of their arguments; results come back to the CPU."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        op = getattr(ops, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            there = pytree.tree_map_only(torch.Tensor, lambda t: t.cuda(), (args, kwargs))
            return pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), op(*there[0], **there[1]))

        return run


@pytest.fixture(params=["reference", "ops_cpu", pytest.param("ops_cuda", marks=pytest.mark.gpu)])
def kernels(request: pytest.FixtureRequest) -> Any:
    """The functions under test: the plain reference, or the ops on a device."""
    if request.param == "ops_cuda":
        return _OnCuda()
    return {"reference": reference, "ops_cpu": ops}[request.param]
