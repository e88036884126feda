"""A virtual environment for each peer, under `.peers/` (ignored by git)."""

import subprocess
import sys
from pathlib import Path

from benchmarks.quantize.peers import EXTRA

ROOT = Path(__file__).parents[2]


class PeerError(Exception):
    """A peer can't be installed here; the message is the installer's last line."""


def python_of(peer: str) -> Path:
    """The interpreter of the peer's environment, which is made on first use.

    Raises:
        PeerError: It couldn't be installed.
    """
    folder = ROOT / ".peers" / peer
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        _run([sys.executable, "-m", "venv", str(folder)])
        # The pinned torch first: a peer's own requirement would pull the one with CUDA.
        _install(python, _pinned_torch())
        _install(python, "llvmlite", peer, *EXTRA.get(peer, ()))
        complete.touch()
    return python


def _pinned_torch() -> str:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def _install(python: Path, *requirements: str) -> None:
    constraints = ["-c", str(ROOT / "constraints.txt")]
    _run([str(python), "-m", "pip", "install", "--quiet", *constraints, *requirements])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerError((done.stderr.strip() or "failed without a message").splitlines()[-1])
