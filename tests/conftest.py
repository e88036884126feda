"""Settings that must be in place before anything under test is imported."""

from __future__ import annotations

import os
import shutil

import pytest

HAS_GPU = shutil.which("nvidia-smi") is not None

if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs a CUDA device where there is none; pytest counts what was deselected."""
    if HAS_GPU:
        return
    needs_gpu = [item for item in items if item.get_closest_marker("gpu")]
    config.hook.pytest_deselected(items=needs_gpu)
    items[:] = [item for item in items if not item.get_closest_marker("gpu")]
