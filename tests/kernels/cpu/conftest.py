"""The processors that the compiled kernels are tested for, and a kernel cache of their own."""

from collections.abc import Iterator

import pytest

from qrole_kernels.cpu.jit import select_target
from qrole_kernels.cpu.targets import LEVELS, runnable_levels
from qrole_kernels.errors import ArgumentError


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the user's cache out of the tests; compiled code is shared within the session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QROLE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


# Where the own processor has AVX-512, its code is nearly the same.
SLOW = {"avx512": pytest.mark.slow}


@pytest.fixture(params=["own", *[pytest.param(n, marks=SLOW.get(n, ())) for n in LEVELS]])
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    """The machine's own processor and each instruction set; one it lacks is an expected failure."""
    name: str = request.param
    if name == "own":
        select_target(None)
    elif name in runnable_levels():
        select_target(LEVELS[name])
    else:
        with pytest.raises(ArgumentError, match="a target that this processor can run"):
            select_target(LEVELS[name])
        pytest.xfail(f"this processor can't run {name}")
    yield name
    select_target(None)
