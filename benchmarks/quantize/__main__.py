"""`python -m benchmarks.quantize`: measures qrole and its peers, prints tables, writes JSON."""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.quantize.environments import ROOT, PeerError, python_of
from benchmarks.quantize.peers import MODULES
from benchmarks.quantize.start import first_quantization
from benchmarks.quantize.table import tables

SHAPES = ([4096, 14336], [1024, 4096])
LARGE = 1 << 24
"""Elements from which on a peer takes seconds, and gets fewer rounds."""


def work(python: Path | str, task: str, shape: list[int], rounds: int, threads: int) -> Any:
    """The rows that one process measures."""
    command = [str(python), "-m", "benchmarks.quantize.worker", task]
    command += ["--shape", *map(str, shape), "--rounds", str(rounds), "--threads", str(threads)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PeerError((done.stderr.strip() or "failed without a message").splitlines()[-1])
    return json.loads(done.stdout)


def installed(python: Path, peer: str) -> str:
    """The version of a peer in its environment."""
    code = f"from importlib.metadata import version; print(version({peer!r}))"
    return subprocess.run(
        [str(python), "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "processors": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "torch": version("torch"),
        "llvmlite": version("llvmlite"),
    }


def measure(peers: list[str], rounds: int, peer_rounds: int) -> dict[str, Any]:
    """All rows, peer by peer; one that fails or can't be installed is recorded with the reason."""
    report: dict[str, Any] = {"machine": machine(), "shapes": list(SHAPES), "rows": [], "peers": {}}
    for shape in SHAPES:
        report["rows"] += work(sys.executable, "own", shape, rounds, 1)
        report["rows"] += work(sys.executable, "threads", shape, rounds, 2)
    for peer in peers:
        try:
            python = python_of(peer)
            report["peers"][peer] = {"version": installed(python, peer), "error": None}
            for shape in SHAPES:
                few = math.prod(shape) > LARGE
                report["rows"] += work(python, peer, shape, peer_rounds if few else rounds, 1)
        except PeerError as error:
            report["peers"][peer] = {"version": None, "error": str(error)}
    report["first_quantization_seconds"] = first_quantization(5)
    report["machine"]["load_after"] = os.getloadavg()[0]
    return report


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--peers", nargs="*", default=list(MODULES), choices=list(MODULES))
    parser.add_argument("--rounds", type=int, default=21, help="rounds of qrole against the copy")
    parser.add_argument(
        "--peer-rounds", type=int, default=3, help="rounds with a peer on the large shape"
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "benchmarks" / "results" / "quantize.json"
    )
    options = parser.parse_args()
    report = measure(options.peers, options.rounds, options.peer_rounds)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    print(tables(report))
    print(f"\nWritten to {os.path.relpath(options.output)}.")


if __name__ == "__main__":
    main()
