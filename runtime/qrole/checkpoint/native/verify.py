"""Checking a checkpoint of the layout native: digests, ranges, and every bit made once more."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from qrole.checkpoint.encode import Workspace
from qrole.checkpoint.engines import ENGINES, Level, Verdict
from qrole.checkpoint.layers import Layer
from qrole.checkpoint.layouts.base import Content
from qrole.checkpoint.native.quantizing import (
    digest,
    quantized,
    raw_bytes,
    tensors_of,
    with_weight,
)
from qrole.checkpoint.native.stored import complain_of_manifest, read_native, read_record
from qrole.checkpoint.schemes import Activations, Scheme, WeightFormat
from qrole.checkpoint.source import Source
from qrole.checkpoint.verification.against_source import check_files, check_values
from qrole.checkpoint.verification.decoding import StoredLayer
from qrole.checkpoint.verification.files import check_index, check_tied
from qrole.checkpoint.verification.reading import Reader
from qrole.checkpoint.verification.report import LayerError, Problem, VerifyReport
from qrole.loading import read_config

if TYPE_CHECKING:
    import torch

    from qrole.quantizers import OperandFormat

__all__ = ["verify_native"]

OnProgress = Callable[[int, int], None]


def verify_native(
    directory: Path, source: Source | None, on_progress: OnProgress | None
) -> VerifyReport:
    """Checks a checkpoint by itself and, where a source is given, quantizes every weight again.

    Raises:
        CheckpointError: Files are missing, truncated or malformed.
    """
    run = _Verification(directory)
    run.by_itself()
    errors: list[LayerError] = []
    unchanged = None
    if source is not None:
        errors, unchanged = run.against(source, on_progress)
    run.reader.close()
    schemes: dict[str, int] = {}
    for weight in run.found.described.values():
        schemes[weight.quantizer.label] = schemes.get(weight.quantizer.label, 0) + 1
    reason = ("does not read the layout native",)
    return VerifyReport(
        directory=directory,
        layout="native",
        schemes=schemes,
        tensors=len(run.found.tensors),
        nbytes=sum(info.nbytes for info in run.found.tensors.values()),
        unchanged=unchanged,
        errors=tuple(errors),
        problems=tuple(run.problems),
        verdicts=tuple(Verdict(engine, Level.NO, reason) for engine in ENGINES),
    )


class _Verification:
    """One checkpoint while it is looked at, and what was found wrong so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.problems: list[Problem] = []
        self.reader = Reader()
        self.config = read_config(directory) or {}
        self.manifest = read_record(directory)
        self.found = read_native(directory, self.complain)

    def complain(self, kind: str, where: str, message: str) -> None:
        """Adds a problem."""
        self.problems.append(Problem(kind, where, message))

    def by_itself(self) -> None:
        """Everything that needs no source."""
        check_index(self.directory, self.found.tensors, self.complain)
        check_tied(self.config, self.found.tensors, self.complain)
        complain_of_manifest(self.found, self.manifest, self.complain)
        if "quantization_config" in self.config:
            self.complain(
                "wrong-config", "config.json", "declares a quantization that engines would look for"
            )
        for module, layer in self.found.layers.items():
            quantizer = self.found.described[module].quantizer
            _check_numbers(layer, self.reader, self.complain)
            for fmt, data, scale in (
                (quantizer.rowwise_format, Content.ROWWISE_DATA, Content.ROWWISE_SCALE_INV),
                (
                    quantizer.columnwise_format,
                    Content.COLUMNWISE_DATA,
                    Content.COLUMNWISE_SCALE_INV,
                ),
            ):
                _check_codes(layer, fmt, data, scale, self.reader, self.complain)
            self._check_digest(module, layer)

    def _check_digest(self, module: str, layer: StoredLayer) -> None:
        entry = self.manifest["layers"].get(module)
        if entry is None:
            return
        parts = ((str(c), self.reader.raw(info)) for c, info in layer.parts.items())
        if digest(parts) != entry["native"]["sha256"]:
            self.complain("changed-bytes", module, "differs from what was written (SHA-256)")

    def against(
        self, origin: Source, on_progress: OnProgress | None
    ) -> tuple[list[LayerError], int]:
        """Errors of all weights, and the number of unchanged tensors."""
        check_files(self.directory, origin, self.config, (), self.complain)
        total = sum(info.nbytes for info in self.found.tensors.values())
        done, work = 0, Workspace()

        def add(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            if on_progress is not None:
                on_progress(done, total)

        errors = []
        taken = set()
        for module, layer in self.found.layers.items():
            error = self._again(module, layer, origin, work)
            if error is not None:
                errors.append(error)
                taken.add(self._layer(module, layer).tensor)
            add(sum(info.nbytes for info in layer.parts.values()))
        return errors, self._others(origin, taken, add)

    def _others(self, origin: Source, taken: set[str], add: Callable[[int], None]) -> int:
        """The number of tensors that are unchanged, those that are quantized aside."""
        parts = {i.name for layer in self.found.layers.values() for i in layer.parts.values()}
        rest = {n: info for n, info in self.found.tensors.items() if n not in parts}
        left = {n: t for n, t in origin.tensors.items() if n not in taken}
        others = Source(origin.name, left, origin.directory, origin.config_text, origin.tied)
        try:
            return check_values(rest, {}, {}, others, {}, self.reader, self.complain, add)[1]
        finally:
            others.close()

    def _layer(self, module: str, layer: StoredLayer) -> Layer:
        """The weight's place in the source, as the manifest tells it."""
        entry = self.manifest["layers"].get(module) or {}
        weight = self.found.described[module]
        return Layer(
            module=module,
            tensor=entry.get("tensor", f"{module}.weight"),
            first_row=entry.get("first_row", 0),
            rows=layer.rows,
            columns=layer.columns,
            scheme=Scheme(weight.quantizer.label, "native", Activations.NONE),
            weight=WeightFormat("native"),
            slot=module,
            place=(module, "", 0),
            answer="",
            note="",
            group=(module,),
            native=weight,
        )

    def _again(
        self, module: str, layer: StoredLayer, origin: Source, work: Workspace
    ) -> LayerError | None:
        """Quantizes a weight once more: every stored bit must come out again."""
        place, weight = self._layer(module, layer), self.found.described[module]
        tensor = origin.tensors.get(place.tensor)
        shape = (layer.rows, layer.columns)
        fits = tensor is not None and tensor.shape[-1] == layer.columns
        if (
            tensor is None
            or not fits
            or math.prod(tensor.shape) // layer.columns < (place.first_row + layer.rows)
        ):
            where = f"the source has no weight {place.tensor} with rows of its shape {shape}"
            self.complain("not-in-source", module, where)
            return None

        def compare(x_MK: torch.Tensor) -> LayerError:
            made = quantized(weight, x_MK)
            for content, value in tensors_of(made, layer.parts).items():
                stored = self.reader.raw(layer.parts[content])
                if not raw_bytes(value).equal(stored):
                    name = layer.parts[content].name
                    self.complain("wrong-values", name, "is not what the quantizer makes")
            error = made.dequantize().float() - x_MK.float()
            noise, signal = float(error.square().sum()), float(x_MK.float().square().sum())
            sqnr = 10 * math.log10(signal / noise) if noise and signal else math.inf
            worst = float(error.abs().max())
            return LayerError(module, weight.quantizer.label, sqnr, worst, 0.0)

        return with_weight(origin, place, work, compare)


def _check_numbers(
    layer: StoredLayer, reader: Reader, complain: Callable[[str, str, str], None]
) -> None:
    """Amaxes and fp32 scales are finite; scales are positive, amaxes at least zero."""
    import torch

    for content, info in layer.parts.items():
        if info.dtype != "F32" or content in (Content.ROWWISE_DATA, Content.COLUMNWISE_DATA):
            continue
        values = reader.rows(info)
        amax = content in (Content.AMAX_ROWWISE, Content.AMAX_COLUMNWISE)
        fine = torch.isfinite(values) & ((values >= 0) if amax else (values > 0))
        if not bool(fine.all()):
            complain("bad-scale", info.name, "holds numbers that no quantizer makes of weights")


def _check_codes(
    layer: StoredLayer,
    fmt: OperandFormat,
    data: Content,
    scale: Content,
    reader: Reader,
    complain: Callable[[str, str, str], None],
) -> None:
    """No code and no block scale is a NaN or an infinity."""
    import torch

    elements = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    info = layer.parts.get(data)
    if info is not None and fmt.element in elements:
        values = reader.raw(info).view(elements[fmt.element]).float()
        if not bool(torch.isfinite(values).all()):
            complain("bad-code", info.name, "holds codes of NaN or infinity")
    info = layer.parts.get(scale)
    if info is None or info.dtype != "U8":
        return
    raw = reader.raw(info)
    bad = raw == 255 if fmt.scale == "e8m0" else raw > 0x7E
    if bool(bad.any()):
        complain("bad-scale", info.name, "holds block scales of NaN, or negative ones")
