"""The files beside the weights: tokenizer, templates, processors, code; all but weights."""

from __future__ import annotations

import shutil
from pathlib import Path

from qrole.checkpoint.staging import writing

__all__ = ["copy_other_files", "other_files"]

_WEIGHTS = (
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".pt",
    ".pth",
    ".ckpt",
    ".gguf",
    ".onnx",
    ".onnx_data",
    ".h5",
    ".msgpack",
    ".npz",
    ".pkl",
    ".tflite",
)
_OURS = ("config.json", "hf_quant_config.json", "qrole_manifest.json")


def other_files(directory: Path) -> list[Path]:
    """What belongs to a checkpoint and is no weights, relative to its directory, sorted."""
    found = []
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        hidden = any(part.startswith(".") for part in relative.parts)
        ours = len(relative.parts) == 1 and relative.name in _OURS
        if path.is_file() and not hidden and not ours and not path.name.endswith(_WEIGHTS):
            found.append(relative)
    return found


def copy_other_files(directory: Path, target: Path) -> list[str]:
    """Copies them; links become the files they point to.

    Returns:
        Their names.

    Raises:
        CheckpointError: One cannot be read or written.
    """
    names = other_files(directory)
    for name in names:
        with writing(target / name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(directory / name, target / name)
    return [str(name) for name in names]
