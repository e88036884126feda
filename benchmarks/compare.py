"""What a comparison costs beside a plain forward and backward pass of the same batch.

    python benchmarks/compare.py MODEL_DIRECTORY [--factory nvfp4] [--samples 4] [--seq-len 512]

Plain passes and comparisons take turns in one process; the printed ratios are of medians. A
comparison is everything: reference run, candidate run, quantization of the weights, statistics of
every slot, GEMM, layer and gradient. Memory is measured in processes of their own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from qrole.comparing import DataOptions, compare
from qrole.comparing.data import load_data
from qrole.loading import LoadedModel, load_model


def main() -> None:
    """Prints the two ratios of time and the two of memory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--factory", default="nvfp4")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    data = DataOptions(samples=options.samples, seq_len=options.seq_len, batch_size=options.samples)
    model = _loaded(options.model)
    tokens = load_data(model, data).batches[0]["input_ids"]
    print(f"{tokens.numel()} tokens, {torch.get_num_threads()} threads, {options.factory}")
    for name, backward in (("forward and backward", True), ("forward only", False)):
        plain, compared = _times(
            lambda b=backward: _plain(model, tokens, b),
            lambda b=backward: _compared(model, options.factory, data, b),
            options.rounds,
        )
        ratio = statistics.median(compared) / statistics.median(plain)
        print(f"{name}: plain {statistics.median(plain):.2f} s, compare "
              f"{statistics.median(compared):.2f} s, ratio {ratio:.2f}")  # fmt: skip
    plain_kb = _peak(_plain_process, options.model, options.factory, data)
    compared_kb = _peak(_compare_process, options.model, options.factory, data)
    print(f"peak memory: plain {plain_kb / 1e6:.2f} GB, compare {compared_kb / 1e6:.2f} GB, "
          f"ratio {compared_kb / plain_kb:.2f}")  # fmt: skip


def _loaded(directory: Path) -> LoadedModel:
    model = load_model(str(directory), weights=True)
    assert model.module is not None
    model.module.float()
    return model


def _times(
    first: Callable[[], None], second: Callable[[], None], rounds: int
) -> tuple[list[float], list[float]]:
    """Times of both in turn, after one turn that does not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        for function, kept in zip((first, second), times, strict=True):
            start = time.perf_counter()
            function()
            if turn:
                kept.append(time.perf_counter() - start)
    return times


def _plain(model: LoadedModel, tokens: torch.Tensor, backward: bool) -> None:
    module = model.module
    assert module is not None
    with torch.set_grad_enabled(backward):
        logits = module(input_ids=tokens).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    if backward:
        torch.autograd.backward(loss)
        module.zero_grad()


def _compared(model: LoadedModel, factory: str, data: DataOptions, backward: bool) -> None:
    compare(model, factory, data=data, backward=backward)


def _plain_process(directory: Path, factory: str, data: DataOptions) -> None:
    model = _loaded(directory)
    _plain(model, load_data(model, data).batches[0]["input_ids"], True)


def _compare_process(directory: Path, factory: str, data: DataOptions) -> None:
    _compared(_loaded(directory), factory, data, True)


def _peak(
    function: Callable[[Path, str, DataOptions], None],
    directory: Path,
    factory: str,
    data: DataOptions,
) -> int:
    """Peak resident memory of a process that calls the function, in kB."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_of, (function, directory, factory, data))


def _peak_of(
    function: Callable[[Path, str, DataOptions], None],
    directory: Path,
    factory: str,
    data: DataOptions,
) -> int:
    function(directory, factory, data)
    # Not ru_maxrss, which a new process takes over from its parent.
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
