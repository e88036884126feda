"""What `qrole apply` costs beside `cp` of the same files, and how much memory it takes.

    python benchmarks/checkpoint.py WORK_DIRECTORY [--factory nvfp4] [--workers 1] [--rounds 5]

Writes a synthetic checkpoint of four layers like those of an 8-billion Llama in five shards (2.3 GB
of bf16) into the work directory once, then lets `cp` and `apply` take turns on it, page cache warm.
Each `apply` runs in a process of its own; its time is that of the call, without the interpreter's
start, of `cp` that of the process; CPU times are those of both. Ratios are medians over rounds.
With `--peer PYTHON`, an interpreter that has llm-compressor, its data-free path (`model_free_ptq`)
takes its turn too; its imports are not counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

import torch

HIDDEN, INNER, KEYS, WORDS, LAYERS = 4096, 14336, 1024, 32000, 4

_APPLY = """
import json, sys, threading, time
from qrole.checkpoint.apply import apply
from qrole.checkpoint.job import ApplyOptions

peak = 0

def watch(stop):
    global peak
    while not stop.wait(0.005):
        with open("/proc/self/status") as status:
            fields = dict(line.split(":", 1) for line in status if ":" in line)
        peak = max(peak, int(fields["RssAnon"].split()[0]))

source, out, factory, workers = sys.argv[1:]
stop = threading.Event()
watcher = threading.Thread(target=watch, args=(stop,))
watcher.start()
start, cpu = time.perf_counter(), time.process_time()
apply(source, factory, out, options=ApplyOptions(weight_only=True), workers=int(workers))
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
stop.set()
watcher.join()
print(json.dumps({"seconds": seconds, "cpu": cpu, "anonymous_kib": peak}))
"""

_PEER = """
import json, sys, time
from llmcompressor import model_free_ptq

source, out, scheme = sys.argv[1:]
start, cpu = time.perf_counter(), time.process_time()
ignore = ["lm_head", "re:.*embed_tokens$"]
model_free_ptq(source, out, scheme=scheme, ignore=ignore, max_workers=1, device="cpu")
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
print(json.dumps({"seconds": seconds, "cpu": cpu}))
"""

_PEER_SCHEMES = {"nvfp4": "NVFP4A16", "float8_block_scaling": "FP8_BLOCK"}


def main() -> None:
    """Prints times, ratios and memory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--factory", default="nvfp4")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", metavar="PYTHON")
    options = parser.parse_args()
    source = options.work / "source"
    if not (source / "model.safetensors.index.json").is_file():
        _write_source(source)
    times: dict[str, list[dict[str, float]]] = {"cp": [], "apply": [], "model_free_ptq": []}
    for _ in range(options.rounds):
        times["cp"].append(_copy(source, options.work / "copy"))
        out, arguments = options.work / "out", (options.factory, options.workers)
        times["apply"].append(_child(sys.executable, _APPLY, source, out, *arguments))
        if options.peer:
            scheme = _PEER_SCHEMES[options.factory]
            times["model_free_ptq"].append(_child(options.peer, _PEER, source, out, scheme))
        for name, found in times.items():
            if found:
                print(name, {key: round(value, 2) for key, value in found[-1].items()})
    for key in ("seconds", "cpu"):
        print(f"{key}: apply / cp {_ratio(times['apply'], times['cp'], key):.2f}")
        if options.peer:
            print(f"{key}: peer / apply {_ratio(times['model_free_ptq'], times['apply'], key):.1f}")


def _ratio(one: list[dict[str, float]], other: list[dict[str, float]], key: str) -> float:
    """Median over the rounds of one's time in units of the other's."""
    return statistics.median(a[key] / b[key] for a, b in zip(one, other, strict=True))


def _child(python: str, code: str, source: Path, out: Path, *arguments: object) -> dict[str, float]:
    shutil.rmtree(out, ignore_errors=True)
    command = [python, "-c", code, str(source), str(out), *map(str, arguments)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    shutil.rmtree(out, ignore_errors=True)
    result: dict[str, float] = json.loads(found.splitlines()[-1])
    return result


def _copy(source: Path, target: Path) -> dict[str, float]:
    shutil.rmtree(target, ignore_errors=True)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(target)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "cpu": cpu}


def _write_source(directory: Path) -> None:
    """Random weights with the spread of trained ones."""
    directory.mkdir(parents=True, exist_ok=True)
    shards = [[("model.embed_tokens.weight", (WORDS, HIDDEN)), ("lm_head.weight", (WORDS, HIDDEN))]]
    shards += [_layer(i) for i in range(LAYERS)]
    weight_map = {}
    for i, shard in enumerate(shards, 1):
        name = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(directory / name, shard)
        weight_map |= {tensor: name for tensor, _ in shard}
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": LAYERS,
        "vocab_size": WORDS,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2))


def _layer(i: int) -> list[tuple[str, tuple[int, ...]]]:
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (KEYS, HIDDEN),
        "self_attn.v_proj": (KEYS, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }
    return [(f"model.layers.{i}.{name}.weight", shape) for name, shape in shapes.items()]


def _write_shard(path: Path, tensors: list[tuple[str, tuple[int, ...]]]) -> None:
    header, at = {}, 0
    for name, shape in tensors:
        nbytes = 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (at, at + nbytes)}
        at += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draw = torch.Generator().manual_seed(at)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape in tensors:
            values = torch.randn(shape, generator=draw).mul_(0.02).bfloat16()
            file.write(values.reshape(-1).view(torch.uint8).numpy())


if __name__ == "__main__":
    main()
