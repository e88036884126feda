"""The files of a checkpoint directory: index, stale weights, tied heads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qrole.checkpoint.headers import TensorInfo, find_index, read_index

__all__ = ["check_index", "check_tied"]

Complain = Callable[[str, str, str], None]


def check_index(directory: Path, tensors: Mapping[str, TensorInfo], complain: Complain) -> None:
    """Every tensor is in the index, its total is right, and no other weights lie beside it."""
    index = find_index(directory)
    files = {info.file.name for info in tensors.values()}
    if index is not None:
        listed = read_index(index)
        for name in tensors:
            if name not in listed:
                complain("not-in-index", name, f"is in a shard and not in {index.name}")
        metadata = json.loads(index.read_bytes()).get("metadata") or {}
        total = sum(info.nbytes for info in tensors.values())
        if metadata.get("total_size") != total:
            complain(
                "index-total",
                index.name,
                f"total_size is {metadata.get('total_size')}, the tensors have {total} bytes",
            )
    elif len(files) > 1:
        complain("no-index", str(directory), f"{len(files)} weight files and no index")
    for path in sorted(directory.iterdir()):
        stale = path.suffix in (".bin", ".pt", ".pth") or path.suffix == ".safetensors"
        if stale and path.name not in files and path.is_file():
            complain("stale-weights", path.name, "are weights that belong to no part of this")


def check_tied(
    config: Mapping[str, Any], tensors: Mapping[str, TensorInfo], complain: Complain
) -> None:
    """A head that the config ties is not stored."""
    text = config.get("text_config") or {}
    if config.get("tie_word_embeddings", text.get("tie_word_embeddings")) is not True:
        return
    for name in tensors:
        if ".lm_head." in f".{name}":
            complain("tied-head", name, "is stored although the config ties it to the embedding")
