"""Calibrated input amaxes of a job's static layers, kept in the work folder for a resumed run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrole.calibrate import Calibration, DeadExperts, InputPlace, Rule, calibrate
from qrole.checkpoint.encode import Workspace, weight_amax
from qrole.checkpoint.job import Job
from qrole.checkpoint.staging import writing
from qrole.errors import UsageError
from qrole.loading import LoadedModel, load_model

if TYPE_CHECKING:
    from qrole.comparing.data import DataOptions

__all__ = ["CalibrationOptions", "InputRanges", "input_ranges"]

_FILE = "calibration.json"


@dataclass(frozen=True)
class CalibrationOptions:
    """How static input scales are found.

    Attributes:
        data: Text, JSON lines or safetensors; None takes what the model's source offers.
        samples: Samples at most.
        seq_len: Tokens per sample at most.
        batch_size: Samples per batch.
        rules: Methods by module; later ones win.
        dead_experts: What stands in for experts that saw no token.
        trust_remote_code: Run code that a model directory brings.
    """

    data: Path | None = None
    samples: int = 64
    seq_len: int = 512
    batch_size: int = 4
    rules: tuple[Rule, ...] = ()
    dead_experts: DeadExperts = DeadExperts.SIBLING
    trust_remote_code: bool = False

    @property
    def data_options(self) -> DataOptions:
        """What the data loader takes."""
        from qrole.comparing.data import DataOptions

        return DataOptions(self.data, self.samples, self.seq_len, self.batch_size)


@dataclass(frozen=True)
class InputRanges:
    """The amax of each static layer's input, what engines join having one.

    Attributes:
        amaxes: By module.
        record: What the manifest keeps of the calibration; None where there was none.
        notes: What the user should know, in sentences.
    """

    amaxes: dict[str, float] = field(default_factory=dict)
    record: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()


def input_ranges(
    job: Job,
    options: CalibrationOptions,
    work: Path,
    on_progress: Callable[[int, int], None] | None,
) -> InputRanges:
    """Calibrates a job's static layers, or takes up what an interrupted run has found.

    Raises:
        UsageError: There is no data to be had; names the choices.
        ConfigError, NothingMatchedError: A layer was not reached.
    """
    static = job.static_layers
    if not static:
        return InputRanges()
    key = _key(job, options)
    kept = _kept(work / _FILE, key)
    if kept is None:
        kept = _ranges(job, _calibrated(job, options, on_progress))
        with writing(work / _FILE):
            text = json.dumps({"key": key, "amaxes": kept.amaxes, "record": kept.record})
            (work / _FILE).write_text(text)
    return kept


def _calibrated(
    job: Job, options: CalibrationOptions, on_progress: Callable[[int, int], None] | None
) -> Calibration:
    layers = job.selection.layers
    wanted = {
        layers[m].place: 16 if layers[m].scheme.encoding == "nvfp4" else 1
        for m in job.static_layers
    }
    by_place = {layer.place: layer for layer in layers.values()}
    work = Workspace()

    def amax_of_weight(place: InputPlace) -> float:
        return weight_amax(job.source, by_place[place], work)

    try:
        return calibrate(
            _model(job, options),
            wanted,
            options.data_options,
            rules=options.rules,
            dead_experts=options.dead_experts,
            weight_amax=amax_of_weight,
            on_progress=on_progress,
        )
    except UsageError as error:
        if options.data is None and "no input data" in error.given:
            raise UsageError(
                f"{len(job.static_layers)} layers need calibrated input scales, and {error.given}",
                expected="--data FILE (text, .jsonl or .safetensors); a model file with "
                "calibration_data() or example_inputs(); or a directory with a tokenizer",
                hint="give data, or pass --weight-only, which needs none",
            ) from error
        raise


def _model(job: Job, options: CalibrationOptions) -> LoadedModel:
    """The model with its weights; one in memory is taken as it is."""
    if job.loaded is not None:
        return job.loaded
    loaded = load_model(job.source.name, weights=True, trust_remote_code=options.trust_remote_code)
    if loaded.module is None:
        raise UsageError(
            f"{len(job.static_layers)} layers need calibrated input scales, and "
            f"{job.source.name} holds weights without a model",
            expected="a HuggingFace-style directory, or Python that builds the model",
            hint="pass --weight-only, or give these roles a format with dynamic scales",
        )
    return loaded


def _ranges(job: Job, found: Calibration) -> InputRanges:
    """Amaxes by module: fused neighbours share the largest of theirs."""
    layers = job.selection.layers
    amaxes = {}
    for module in job.static_layers:
        members = [layers[m] for m in layers[module].group if m in layers]
        amaxes[module] = max(found.amaxes[member.place] for member in members)
    dead = {m: found.dead[layers[m].place] for m in amaxes if layers[m].place in found.dead}
    record = {
        "data": found.source,
        "sha256": found.sha256,
        "samples": found.samples,
        "tokens": found.tokens,
        "rules": [[r.pattern, r.method.value, r.percentile] for r in found.rules],
        "input_amax": amaxes,
        "dead_experts": dead,
    }
    return InputRanges(amaxes, record, tuple(notes(record)))


def notes(record: dict[str, Any]) -> list[str]:
    """What a calibration's record says to the user."""
    tokens = f", {record['tokens']} tokens" if record["tokens"] else ""
    found = [f"input scales come from {record['samples']} samples of {record['data']}{tokens}"]
    if record["dead_experts"]:
        names = list(record["dead_experts"])
        policy = record["dead_experts"][names[0]]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        found.append(
            f"{len(names)} expert layers saw no token; their {policy} stands in: "
            f"{', '.join(names[:4])}{more}"
        )
    return found


def _key(job: Job, options: CalibrationOptions) -> str:
    """Hash of everything that the amaxes depend on."""
    data = hashlib.sha256(_read(options.data)).hexdigest() if options.data else None
    layers = [(m, repr(job.selection.layers[m])) for m in job.static_layers]
    content = repr((job.source.identity, data, layers, options))
    return hashlib.sha256(content.encode()).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the calibration data {path} cannot be read: {error.strerror}",
            expected="a text, .jsonl or .safetensors file",
            hint="check --data",
        ) from error


def _kept(path: Path, key: str) -> InputRanges | None:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("key") != key:
        return None
    return InputRanges(content["amaxes"], content["record"], tuple(notes(content["record"])))
