"""Fixtures of the kernel tests."""

from collections.abc import Iterator

import pytest

from qrole_kernels import reference
from tests.kernels import golden


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Iterator[golden.Case]:
    """A known-answer case; every tensor of it has to be read by the test."""
    loaded = golden.load(*request.param)
    yield loaded
    assert not loaded.unread, f"{loaded.family}/{loaded.name}: never read: {sorted(loaded.unread)}"


@pytest.fixture
def kernels():
    return reference
