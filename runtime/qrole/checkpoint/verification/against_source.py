"""A checkpoint against its source: everything accounted for, the rest byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from qrole.checkpoint.headers import TensorInfo
from qrole.checkpoint.other_files import other_files
from qrole.checkpoint.source import Source, SourceTensor
from qrole.checkpoint.verification.decoding import StoredLayer
from qrole.checkpoint.verification.fidelity import layer_error
from qrole.checkpoint.verification.reading import Reader
from qrole.checkpoint.verification.report import LayerError

__all__ = ["check_files", "check_values"]

Complain = Callable[[str, str, str], None]

_PORTION = 16 << 20


def check_values(
    tensors: Mapping[str, TensorInfo],
    layers: Mapping[str, StoredLayer],
    schemes: Mapping[str, str],
    source: Source,
    places: Mapping[str, tuple[str, int]],
    reader: Reader,
    complain: Complain,
    on_progress: Callable[[int], None],
) -> tuple[list[LayerError], int]:
    """Errors of all layers, and the number of tensors that are unchanged.

    Args:
        tensors: The checkpoint's.
        layers: Its quantized layers.
        schemes: Their schemes.
        source: Where it came from.
        places: Source tensor and first row of each layer that is not under its own name.
        reader: Reads the checkpoint.
        complain: Told what is wrong.
        on_progress: Told the bytes of each tensor that is done.
    """
    errors, unchanged, seen = [], 0, set()
    for module, layer in layers.items():
        name, first_row = places.get(module, (f"{module}.weight", 0))
        tensor = source.tensors.get(name)
        if tensor is None or tensor.shape[-1] != layer.columns:
            complain("not-in-source", module, f"the source has no weight {name} of its shape")
            continue
        seen.add(name)
        found = layer_error(layer, schemes[module], reader, source, tensor, first_row)
        errors.append(found)
        on_progress(sum(info.nbytes for info in layer.parts.values()))
        if not found.worst <= 1:
            complain(
                "wrong-values",
                module,
                f"differs from the source by {found.worst:.3g} times what rounding explains "
                f"({found.sqnr_db:.1f} dB)",
            )
    parts = {info.name for layer in layers.values() for info in layer.parts.values()}
    for name, tensor in source.tensors.items():
        if name in seen or name in source.tied:
            continue
        info = tensors.get(name)
        if info is None or name in parts:
            if not _tied_head(name, source):
                complain("lost-tensor", name, "is in the source and not in the checkpoint")
            continue
        seen.add(name)
        on_progress(info.nbytes)
        if _same(info, tensor, reader, source):
            unchanged += 1
        else:
            complain("changed-tensor", name, "is not quantized and differs from the source")
    for name in tensors.keys() - parts - source.tensors.keys():
        complain(
            "extra-tensor", name, "is in the checkpoint and neither in the source nor declared"
        )
    return errors, unchanged


def check_files(
    directory: Path,
    source: Source,
    config: Mapping[str, Any],
    may_differ: Collection[str],
    complain: Complain,
) -> None:
    """The config but for the keys that may differ, and the files that are no weights."""
    for key in sorted(config.keys() | source.config.keys()):
        if key not in may_differ and config.get(key) != source.config.get(key):
            complain(
                "config-changed",
                "config.json",
                f"{key} is {json.dumps(config.get(key))}, in the source "
                f"{json.dumps(source.config.get(key))}",
            )
    if source.directory is None or source.config_text is None:
        return
    for name in other_files(source.directory):
        copied = directory / name
        if not copied.is_file():
            complain("missing-file", str(name), "is in the source and was not copied")
        elif copied.read_bytes() != (source.directory / name).read_bytes():
            complain("changed-file", str(name), "differs from the source's")


def _tied_head(name: str, source: Source) -> bool:
    text = source.config.get("text_config") or {}
    tied = source.config.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    return name.endswith("lm_head.weight") and tied is True


def _same(info: TensorInfo, tensor: SourceTensor, reader: Reader, source: Source) -> bool:
    """Whether the stored bytes are the source's; FP8 weights are compared as bf16 values."""
    import torch

    if info.shape != tensor.shape:
        return False
    if tensor.scale is not None:
        return info.dtype == "BF16" and _same_decoded(info, tensor, reader, source)
    if info.dtype != tensor.dtype:
        return False
    mine = reader.raw(info)
    if tensor.memory is not None:
        return torch.equal(mine, tensor.memory.reshape(-1).view(torch.uint8))
    assert tensor.stored is not None
    return torch.equal(mine, reader.raw(tensor.stored))


def _same_decoded(info: TensorInfo, tensor: SourceTensor, reader: Reader, source: Source) -> bool:
    from qrole.checkpoint.encode import Workspace, decoded

    at = 0
    mine = reader.raw(info)
    for portion in decoded(source, tensor, "bf16", Workspace()):
        if mine[at : at + len(portion)].numpy().tobytes() != bytes(portion):
            return False
        at += len(portion)
    return at == info.nbytes
