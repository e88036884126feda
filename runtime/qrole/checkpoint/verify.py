"""`verify`: a written checkpoint against its declaration, and against the source it came from.

Reads the directory as an engine would, by its config; the manifest only tells where layers that
changed their name came from. Decodes in plain torch, apart from the kernels that encoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qrole.checkpoint.fused import fused_groups
from qrole.checkpoint.headers import TensorInfo, read_headers
from qrole.checkpoint.layouts import LAYOUTS
from qrole.checkpoint.manifest import MANIFEST, read_manifest
from qrole.checkpoint.source import Source, open_source
from qrole.checkpoint.verification.against_source import check_files, check_values
from qrole.checkpoint.verification.declared import Declared, weight_modules
from qrole.checkpoint.verification.declared_ct import declared_ct
from qrole.checkpoint.verification.declared_fp8 import declared_fp8
from qrole.checkpoint.verification.declared_modelopt import declared_modelopt
from qrole.checkpoint.verification.files import check_index, check_tied
from qrole.checkpoint.verification.reading import Reader
from qrole.checkpoint.verification.report import LayerError, Problem, VerifyReport
from qrole.checkpoint.verification.scales import check_codes, check_fused, check_numbers
from qrole.checkpoint.verification.structure import check_modules, stored_layers
from qrole.errors import NothingMatchedError, UsageError
from qrole.loading import LoadedModel

__all__ = ["read_declared", "verify"]

OnProgress = Callable[[int, int], None]


def verify(
    directory: str | Path,
    source: str | LoadedModel | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Checks a quantized checkpoint.

    Args:
        directory: What `apply`, or another tool, has written.
        source: The model it was made from, to compare values with; None checks the checkpoint by
            itself.
        on_progress: Called with bytes compared and in total.

    Raises:
        CheckpointError: Files are missing, truncated or malformed.
        UsageError: The layout is not one that is known.
        NothingMatchedError: Nothing in it is quantized.
    """
    path = Path(directory)
    tensors = read_headers(path)
    config = _config(path)
    declared = read_declared(path, config, tensors)
    problems = list(declared.problems)

    def complain(kind: str, where: str, message: str) -> None:
        problems.append(Problem(kind, where, message))

    check_index(path, tensors, complain)
    check_tied(config, tensors, complain)
    modules = weight_modules(tensors)
    layout = LAYOUTS[declared.layout]
    layers = stored_layers(declared, layout, tensors, complain)
    check_modules(declared, layout, tensors, modules, layers, complain)
    reader = Reader()
    for layer in layers.values():
        check_numbers(layer, reader, complain)
        check_codes(layer, reader, complain)
    groups = fused_groups([*modules, *declared.schemes])
    check_fused(groups, layers, declared.schemes, reader, complain)
    errors: list[LayerError] = []
    unchanged = None
    if source is not None:
        origin = _open(source)
        check_files(path, origin, config, complain)
        counter = _Counter(sum(info.nbytes for info in tensors.values()), on_progress)
        errors, unchanged = check_values(
            tensors,
            layers,
            declared.schemes,
            origin,
            _places(path),
            reader,
            complain,
            counter.add,
        )
        origin.close()
    reader.close()
    return VerifyReport(
        directory=path,
        layout=declared.layout,
        schemes=_counts(declared.schemes),
        tensors=len(tensors),
        nbytes=sum(info.nbytes for info in tensors.values()),
        unchanged=unchanged,
        errors=tuple(errors),
        problems=tuple(problems),
        verdicts=(),
    )


def _config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def read_declared(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> Declared:
    """What a checkpoint's config.json says of its modules.

    Raises:
        NothingMatchedError: It declares no quantization.
        UsageError: It declares one that is not known.
    """
    declaration = config.get("quantization_config")
    if not declaration:
        raise NothingMatchedError(
            f"{path} declares no quantized layer",
            expected="a config.json with quantization_config",
            hint="name the directory that `qrole apply` has written",
        )
    method = declaration.get("quant_method")
    if method == "compressed-tensors":
        return declared_ct(declaration, weight_modules(tensors))
    if method == "modelopt":
        return declared_modelopt(declaration, weight_modules(tensors), path)
    if method == "fp8":
        return declared_fp8(declaration, weight_modules(tensors))
    raise UsageError(
        f"config.json declares quant_method {method!r}",
        expected="compressed-tensors, modelopt or fp8",
        hint="verify checks checkpoints that `qrole apply` can write",
    )


def _open(source: str | LoadedModel) -> Source:
    if isinstance(source, str) and _is_stored(source):
        return open_source(Path(source), source)
    from qrole.checkpoint.model_source import source_of_loaded
    from qrole.loading import load_model

    if isinstance(source, str):
        source = load_model(source, weights=True)
    return source_of_loaded(source)


def _is_stored(source: str) -> bool:
    path = Path(source)
    return path.is_dir() or path.suffix == ".safetensors"


def _places(path: Path) -> dict[str, tuple[str, int]]:
    """Source tensor and first row of each layer, from the manifest where there is one."""
    if not (path / MANIFEST).is_file():
        return {}
    layers = read_manifest(path)["layers"]
    return {module: (entry["tensor"], entry["first_row"]) for module, entry in layers.items()}


def _counts(schemes: Mapping[str, str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for scheme in schemes.values():
        counts[scheme] = counts.get(scheme, 0) + 1
    return counts


class _Counter:
    def __init__(self, total: int, tell: OnProgress | None) -> None:
        self._done, self._total, self._tell = 0, total, tell

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        if self._tell is not None:
            self._tell(self._done, self._total)
