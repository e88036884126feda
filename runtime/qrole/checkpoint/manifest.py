"""`qrole_manifest.json`: what was done, from what and by whom, so that it can be checked again.

Holds nothing that differs between two runs of one job: no time, no path of the machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qrole._version import __version__
from qrole.checkpoint.job import Job
from qrole.checkpoint.layers import Layer
from qrole.checkpoint.source import Source
from qrole.errors import CheckpointError
from qrole.plugins import Factory

__all__ = ["MANIFEST", "SCHEMA", "manifest", "read_manifest", "source_files"]

MANIFEST = "qrole_manifest.json"
SCHEMA = "qrole.manifest/1"


def manifest(
    job: Job,
    amaxes: Mapping[str, float],
    calibration: Mapping[str, Any] | None,
    digests: Mapping[str, str],
) -> dict[str, Any]:
    """The record of a finished job, as JSON values.

    Args:
        job: What was done.
        amaxes: Amax of each layer's weight.
        calibration: Input amaxes and where they come from; None without calibration.
        digests: SHA-256 of what a layer's own quantizer made, for the layout native.
    """
    source, selection, factory = job.source, job.selection, job.plan.factory
    return {
        "schema": SCHEMA,
        "qrole": __version__,
        "source": {"name": Path(source.name).name, "files": source_files(source)},
        "factory": {
            "name": Path(factory.name).name,
            "qualname": _qualname(factory),
            "sha256": factory.sha256,
        },
        "layout": job.layout.name,
        "options": job.options.for_bytes(),
        "layers": {
            m: _layer(la, amaxes[m]) | _native(la, digests) for m, la in selection.layers.items()
        },
        "kept": {tensor: kept.reason for tensor, kept in selection.kept.items()},
        "dropped": selection.dropped,
        "notes": list(selection.notes),
        "calibration": dict(calibration) if calibration is not None else None,
    }


def source_files(source: Source) -> dict[str, dict[str, Any]]:
    """Size and hash of each weight file's header, by file name."""
    files = {}
    for path, identity in source.files.items():
        with path.open("rb") as file:
            length = file.read(8)
            header = length + file.read(int.from_bytes(length, "little"))
        files[path.name] = {
            "bytes": identity.size,
            "header_sha256": hashlib.sha256(header).hexdigest(),
        }
    return files


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a written checkpoint.

    Raises:
        CheckpointError: There is none, or it is not one.
    """
    path = directory / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}",
            expected="the manifest that `qrole apply` writes",
            hint="name a directory that `qrole apply` has written",
        ) from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{path} is no manifest of schema {SCHEMA}",
            expected="the manifest that this version of qrole writes",
            hint="verify with the version that wrote it",
        )
    return content


def _qualname(factory: Factory) -> str:
    """A qualified name without the private module name that a user's file is loaded under."""
    private = factory.qualname.startswith("qrole_user_")
    return factory.qualname.rpartition(".")[2] if private else factory.qualname


def _layer(layer: Layer, amax: float) -> dict[str, Any]:
    return {
        "tensor": layer.tensor,
        "first_row": layer.first_row,
        "shape": [layer.rows, layer.columns],
        "scheme": layer.scheme.name,
        "format": _format(layer),
        "slot": layer.slot,
        "answer": layer.answer,
        "note": layer.note,
        "amax": amax,
    }


def _format(layer: Layer) -> dict[str, Any]:
    if layer.native is not None:
        return {"encoding": layer.native.quantizer.rowwise_format.family}
    return asdict(layer.weight)


def _native(layer: Layer, digests: Mapping[str, str]) -> dict[str, Any]:
    if layer.native is None:
        return {}
    record = layer.native.to_json(layer.rows, layer.columns)
    return {"native": {**record, "sha256": digests[layer.module]}}
