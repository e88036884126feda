"""Whether a checkpoint is of the layout native, from its headers and its manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qrole.checkpoint.headers import TensorInfo, read_file_header, read_headers
from qrole.checkpoint.manifest import MANIFEST, read_manifest
from qrole.checkpoint.native.weights import METADATA
from qrole.errors import CheckpointError

__all__ = ["descriptions", "is_native"]


def is_native(directory: Path) -> bool:
    """Whether its manifest says that a checkpoint is of this layout; the files without one."""
    if (directory / MANIFEST).is_file():
        return bool(read_manifest(directory).get("layout") == "native")
    return bool(descriptions(read_headers(directory)))


def descriptions(tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """Records of all weights in the metadata of the files."""
    found: dict[str, Any] = {}
    for path in dict.fromkeys(info.file for info in tensors.values()):
        text = read_file_header(path)[1].get(METADATA)
        if text is None:
            continue
        try:
            found.update(json.loads(text))
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"the metadata {METADATA} of {path} are malformed: {error}",
                expected="a JSON object",
                hint="write the checkpoint again",
            ) from error
    return found
