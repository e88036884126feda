"""`verify`: a written checkpoint against its declaration, and against the source it came from.

Reads the directory as an engine would, by its config; the manifest only tells where layers that
changed their name came from. Decodes in plain torch, apart from the kernels that encoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qrole.checkpoint.engines import Verdict, model_dtype, verdicts
from qrole.checkpoint.fused import fused_groups
from qrole.checkpoint.headers import TensorInfo, read_headers
from qrole.checkpoint.layers import Kept, Selection
from qrole.checkpoint.layouts import LAYOUTS
from qrole.checkpoint.manifest import MANIFEST, read_manifest
from qrole.checkpoint.native.detection import is_native
from qrole.checkpoint.source import Source, open_source
from qrole.checkpoint.staging import Staging
from qrole.checkpoint.verification.against_source import check_files, check_values
from qrole.checkpoint.verification.declared import Declared, weight_modules
from qrole.checkpoint.verification.declared_ct import declared_ct
from qrole.checkpoint.verification.declared_fp8 import declared_fp8
from qrole.checkpoint.verification.declared_modelopt import declared_modelopt
from qrole.checkpoint.verification.decoding import StoredLayer
from qrole.checkpoint.verification.files import check_index, check_tied
from qrole.checkpoint.verification.reading import Reader
from qrole.checkpoint.verification.report import LayerError, Problem, VerifyReport
from qrole.checkpoint.verification.scales import check_codes, check_fused, check_numbers
from qrole.checkpoint.verification.structure import check_modules, layer_of, stored_layers
from qrole.errors import CheckpointError, NothingMatchedError, UsageError
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
    _check_directory(Path(directory))
    if is_native(Path(directory)):
        from qrole.checkpoint.native.verify import verify_native

        origin = _open(source) if source is not None else None
        try:
            return verify_native(Path(directory), origin, on_progress)
        finally:
            if origin is not None:
                origin.close()
    run = _Verification(Path(directory))
    run.by_itself()
    errors: list[LayerError] = []
    unchanged = None
    if source is not None:
        origin = _open(source)
        errors, unchanged = run.against(origin, on_progress)
        origin.close()
    run.reader.close()
    return VerifyReport(
        directory=run.path,
        layout=run.declared.layout,
        schemes=_counts(run.declared.schemes),
        tensors=len(run.tensors),
        nbytes=sum(info.nbytes for info in run.tensors.values()),
        unchanged=unchanged,
        errors=tuple(errors),
        problems=tuple(run.problems),
        verdicts=run.verdicts(),
    )


def _check_directory(path: Path) -> None:
    """Refuses what is no written checkpoint, before its files are looked at."""
    if path.is_dir() and any(path.glob("*.safetensors")):
        return
    what = "does not exist"
    if path.exists():
        what = "holds no .safetensors file" if path.is_dir() else "is no directory"
    unfinished = Staging(path).work
    hint = "check the path, or write one with `qrole apply MODEL -f FACTORY -o DIR`"
    if unfinished.is_dir():
        what += f"; {unfinished} holds an unfinished one"
        hint = "give the same `qrole apply` command again: it goes on where it stopped"
    raise CheckpointError(
        f"{path} {what}", expected="a directory that `qrole apply` has written", hint=hint
    )


class _Verification:
    """One checkpoint while it is looked at, and what was found wrong so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors = read_headers(path)
        self.config = _config(path)
        self.declared = read_declared(path, self.config, self.tensors)
        self.manifest = read_manifest(path) if (path / MANIFEST).is_file() else None
        self.problems = list(self.declared.problems)
        self.modules = weight_modules(self.tensors)
        self.groups = fused_groups([*self.modules, *self.declared.schemes])
        self.reader = Reader()
        self.layers: dict[str, StoredLayer] = {}

    def complain(self, kind: str, where: str, message: str) -> None:
        """Adds a problem."""
        self.problems.append(Problem(kind, where, message))

    def by_itself(self) -> None:
        """Everything that needs no source."""
        declared, layout = self.declared, LAYOUTS[self.declared.layout]
        check_index(self.path, self.tensors, self.complain)
        check_tied(self.config, self.tensors, self.complain)
        self.layers = stored_layers(declared, layout, self.tensors, self.complain)
        check_modules(declared, layout, self.tensors, self.modules, self.layers, self.complain)
        for layer in self.layers.values():
            check_numbers(layer, self.reader, self.complain)
            check_codes(layer, self.reader, self.complain)
        check_fused(self.groups, self.layers, declared.schemes, self.reader, self.complain)
        self._check_manifest()

    def _check_manifest(self) -> None:
        if self.manifest is None:
            return
        recorded = {m: entry["scheme"] for m, entry in self.manifest["layers"].items()}
        for module in sorted(recorded.keys() | self.declared.schemes.keys()):
            told, is_declared = recorded.get(module), self.declared.schemes.get(module)
            if told != is_declared:
                self.complain(
                    "manifest-differs", module, f"was written as {told}, declared {is_declared}"
                )

    def against(
        self, origin: Source, on_progress: OnProgress | None
    ) -> tuple[list[LayerError], int]:
        """Errors of all layers, and the number of unchanged tensors."""
        manifest = self.manifest or {"layers": {}, "options": {}}
        may_differ = {"quantization_config"}
        if manifest["options"].get("dtype"):
            may_differ |= {"dtype", "torch_dtype"}
        check_files(self.path, origin, self.config, may_differ, self.complain)
        places = {m: (e["tensor"], e["first_row"]) for m, e in manifest["layers"].items()}
        counter = _Counter(sum(info.nbytes for info in self.tensors.values()), on_progress)
        return check_values(
            self.tensors,
            self.layers,
            self.declared.schemes,
            origin,
            places,
            self.reader,
            self.complain,
            counter.add,
        )

    def verdicts(self) -> tuple[Verdict, ...]:
        """What engines make of the layers that are declared and whole."""
        schemes = self.declared.schemes
        layers = {
            m: layer_of(m, schemes[m], la.rows, la.columns, self.groups.get(m, (m,)))
            for m, la in self.layers.items()
        }
        kept = {f"{m}.weight": Kept(f"{m}.weight", m, "") for m in self.modules if m not in schemes}
        selection = Selection(layers, kept, {}, (), tuple(self.modules), ())
        return verdicts(self.declared.layout, selection, model_dtype(self.config))


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
            expected="a directory that `qrole apply` has written, or a config.json with "
            "quantization_config",
            hint="name what was given to `qrole apply` as -o, not its source",
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
