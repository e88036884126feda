"""One process that measures: `python -m benchmarks.quantize.worker TASK …`, JSON on stdout.

Every round runs a bf16 copy and all operations once, one after the other; a row is the median over
the rounds of an operation's time divided by that of the copy in the same round.
"""

import argparse
import importlib
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from benchmarks.quantize import ours
from benchmarks.quantize.memory import extra_bytes
from benchmarks.quantize.peers import MODULES

Row = dict[str, object]


def seconds(operation: Callable[[], object]) -> float:
    """Wall time of one run."""
    begin = time.perf_counter()
    operation()
    return time.perf_counter() - begin


def interleaved(
    baseline: Callable[[], object], operations: Mapping[str, Callable[[], object]], rounds: int
) -> dict[str, list[float]]:
    """Per operation and round, its time over that of the baseline."""
    for operation in (baseline, *operations.values()):
        operation()
    found: dict[str, list[float]] = {name: [] for name in operations}
    for _ in range(rounds):
        unit = seconds(baseline)
        for name, operation in operations.items():
            found[name].append(seconds(operation) / unit)
    return found


def summary(ratios: list[float]) -> dict[str, object]:
    """The median, and the range of the rounds."""
    return {
        "median": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "rounds": len(ratios),
    }


def measure_own(x: Tensor, rounds: int, threads: int) -> list[Row]:
    """Quantization into given and new tensors, decoding, and the memory used."""
    y, out = torch.empty_like(x), ours.Outputs.new(x)
    quantization = ours.Quantization(x, threads)
    given = quantization.into(out)
    suites = {
        ("quantize", "preallocated"): given,
        ("quantize", "fresh"): quantization.fresh(),
        ("dequantize", "preallocated"): ours.Dequantization(x, threads).operations(),
    }
    rows: list[Row] = []
    for (task, outputs), operations in suites.items():
        for name, ratios in interleaved(lambda: y.copy_(x), operations, rounds).items():
            row = {"who": "qrole", "task": task, "outputs": outputs, "format": name}
            rows.append({**row, "times_copy": summary(ratios)})
    for row in rows:
        if row["task"] == "quantize" and row["outputs"] == "preallocated":
            row["extra_bytes_per_element"] = extra_bytes(given[str(row["format"])]) / x.numel()
    return rows


def measure_threads(x: Tensor, rounds: int, threads: int) -> list[Row]:
    """How many times faster `threads` threads are than one, and what processor time they add.

    On a machine that is busy with other work the second number alone says something: with the
    processors to themselves, the threads would be `threads / processor_time` times as fast.
    """
    out = ours.Outputs.new(x)
    one, many = (ours.Quantization(x, count).into(out) for count in (1, threads))
    rows: list[Row] = []
    for name in one:
        runs = [(timed(one[name]), timed(many[name])) for _ in range(rounds + 1)][1:]
        wall = [single[0] / several[0] for single, several in runs]
        processor = [several[1] / single[1] for single, several in runs]
        row: Row = {"who": "qrole", "task": "threads", "format": name}
        rows.append({**row, "speedup": summary(wall), "processor_time": summary(processor)})
    return rows


def timed(operation: Callable[[], object]) -> tuple[float, float]:
    """Wall time, and processor time of all threads."""
    wall, processor = time.perf_counter(), time.process_time()
    operation()
    return time.perf_counter() - wall, time.process_time() - processor


def measure_peer(peer: str, x: Tensor, rounds: int, threads: int) -> list[Row]:
    """A peer against the copy, and against qrole in the same rounds."""
    y, out = torch.empty_like(x), ours.Outputs.new(x)
    quantization = ours.Quantization(x, threads)
    given, fresh = quantization.into(out), quantization.fresh()
    theirs = importlib.import_module(MODULES[peer]).operations(x)
    rows: list[Row] = []
    for name, operation in theirs.items():
        trio = {"peer": operation, "given": given[name], "fresh": fresh[name]}
        found = interleaved(lambda: y.copy_(x), trio, rounds)
        row: Row = {"who": peer, "task": "quantize", "outputs": "fresh", "format": name}
        row["times_copy"] = summary(found["peer"])
        for ours_name, key in (("given", "times_qrole"), ("fresh", "times_qrole_fresh")):
            pairs = zip(found["peer"], found[ours_name], strict=True)
            row[key] = summary([peer_ratio / our_ratio for peer_ratio, our_ratio in pairs])
        rows.append(row)
    return rows


def main() -> None:
    """Measure one task and print its rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("own", "threads", *MODULES))
    parser.add_argument("--shape", type=int, nargs=2, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    x = torch.randn(options.shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    measure = {"own": measure_own, "threads": measure_threads}.get(options.task)
    with torch.inference_mode():
        if measure:
            rows = measure(x, options.rounds, options.threads)
        else:
            rows = measure_peer(options.task, x, options.rounds, options.threads)
    for row in rows:
        row |= {"shape": options.shape, "threads": options.threads}
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
