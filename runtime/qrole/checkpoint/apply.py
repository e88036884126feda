"""`apply`: a factory's plan, written as a checkpoint.

Reading order: `job.prepare` lays everything out; a run calibrates where scales are static, lets
workers write the units, checks what was written and gives it its name.
"""

from __future__ import annotations

import json
import platform
import threading
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from qrole.checkpoint.engines import Verdict
from qrole.checkpoint.headers import read_headers
from qrole.checkpoint.inputs import CalibrationOptions, InputRanges, input_ranges
from qrole.checkpoint.job import ApplyOptions, Job, prepare
from qrole.checkpoint.journal import Record, this_machine
from qrole.checkpoint.manifest import MANIFEST, manifest
from qrole.checkpoint.memory import UnusableSourceError
from qrole.checkpoint.other_files import copy_other_files
from qrole.checkpoint.ranks import Ranks, ranks_of_environment
from qrole.checkpoint.shards import index_text
from qrole.checkpoint.staging import Staging, check_output
from qrole.checkpoint.stream import Writer, run_units
from qrole.checkpoint.units import Unit
from qrole.errors import CheckpointError, ConfigError, InterruptedRunError, QroleError
from qrole.loading import LoadedModel
from qrole.plugins import Factory
from qrole_kernels.cpu.threads import default_threads

__all__ = ["ApplyReport", "apply"]

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class ApplyReport:
    """What `apply` did.

    Attributes:
        output: The directory.
        schemes: Number of layers by scheme.
        source_bytes: Bytes of the tensors read.
        output_bytes: Bytes of the files written.
        reused_bytes: Source bytes of units that an earlier, unfinished run had done.
        dropped_remains: Another job's unfinished output was in the way and was removed.
        verdicts: What each engine makes of the result.
        notes: What the user should know, in sentences.
    """

    output: Path
    schemes: dict[str, int]
    source_bytes: int
    output_bytes: int
    reused_bytes: int
    dropped_remains: bool
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values, under the schema `qrole.apply/1`."""
        return {"schema": "qrole.apply/1", **asdict(self), "output": str(self.output)}

    def _repr_html_(self) -> str:
        from qrole.display import apply_html

        return apply_html(self)


def apply(
    model: str | LoadedModel,
    factory: str | Factory | Callable[..., Any],
    output: str | Path,
    *,
    options: ApplyOptions | None = None,
    force: bool = False,
    calibration: CalibrationOptions | None = None,
    workers: int = 0,
    fsync: bool = False,
    on_progress: OnProgress | None = None,
    on_calibration: OnProgress | None = None,
) -> ApplyReport:
    """Quantizes a model's weights by a factory's plan and writes a checkpoint.

    Args:
        model: A HuggingFace-style directory, a `.safetensors` file, Python that builds a model, or
            a loaded model.
        factory: Its name as `--factory` takes it, or the function.
        output: The directory; must not exist.
        options: Layout, schemes and what must load the result.
        force: Replace an existing directory.
        calibration: How the inputs of static layers are looked at; not used where none is static.
        workers: Threads; 0 for as many as the kernels use. The bytes do not depend on it.
        fsync: Wait until the disk has everything before the output gets its name; without it a
            power cut in the next seconds can cost its content, as after `cp`.
        on_progress: Called with source bytes done and in total.
        on_calibration: Called with calibration batches done and in total.

    Raises:
        OutputExistsError: The output exists, or another run is writing it.
        UsageError, ConfigError: The plan cannot be stored as asked; nothing was written.
        CheckpointError: The source is corrupt or has changed, or the output cannot be written. What
            the next run can go on with is kept beside the output, and the message says where.
        InterruptedRunError: Stopped by the user; the next run goes on.
    """
    final = Path(output)
    ranks = ranks_of_environment()
    try:
        job = prepare(model, factory, options or ApplyOptions())
        if ranks.leads:
            check_output(final, job.source.directory, force)
        job.documents  # noqa: B018 - what cannot be declared is refused before work starts
        # Quantizers take whole weights, and torch has threads of its own.
        threads = 1 if job.layout.own_quantizers else workers or default_threads()
        run = _Run(job, Staging(final), ranks, threads, force, fsync)
        return run.do(calibration or CalibrationOptions(), on_progress, on_calibration)
    except KeyboardInterrupt as error:
        work = Staging(final).work
        kept = f"; what is done is kept in {work}" if work.is_dir() else ""
        raise InterruptedRunError(
            f"stopped before {final} was complete",
            expected="a run to its end",
            hint=f"run the same command again: it goes on where it stopped{kept}",
        ) from error
    finally:
        ranks.close()


@dataclass
class _Run:
    """One process's part in a job, from the lock to the published directory."""

    job: Job
    staging: Staging
    ranks: Ranks
    workers: int
    force: bool
    fsync: bool

    def do(
        self,
        calibration: CalibrationOptions,
        on_progress: OnProgress | None,
        on_calibration: OnProgress | None,
    ) -> ApplyReport:
        try:
            if self.ranks.leads:
                self.staging.lock()
            return self._write(self._inputs(calibration, on_calibration), on_progress)
        except QroleError as error:
            if self.staging.release(discard=isinstance(error, UnusableSourceError)):
                error.hint += f"; what is done is kept in {self.staging.work}"
            raise
        finally:
            self.staging.release()
            self.job.source.close()

    def _inputs(
        self, calibration: CalibrationOptions, on_calibration: OnProgress | None
    ) -> InputRanges:
        """What the first process finds by calibration, or has found in a run before."""
        found = InputRanges()
        if self.ranks.leads:
            found = input_ranges(self.job, calibration, self.staging.work, on_calibration)
        amaxes = self.ranks.share("amaxes of inputs", found.amaxes)
        return replace(found, amaxes=amaxes)

    def _write(self, inputs: InputRanges, on_progress: OnProgress | None) -> ApplyReport:
        job, staging, ranks = self.job, self.staging, self.ranks
        machines = self._machines()
        identity = ranks.share("job", job.identity(inputs.amaxes) if ranks.leads else "")
        dropped = ranks.leads and staging.prepare(identity, job.shards, machines)
        found = staging.record(identity, machines) if ranks.leads else Record()
        done = ranks.share("done", found.done)
        total = sum(unit.nbytes for unit in job.units)
        reused = sum(unit.nbytes for unit in job.units if unit.key in done)
        own = self._units(identity, inputs, done, _Counter(reused, total, on_progress))
        for others in ranks.gather("amaxes", own):
            done |= others
        if ranks.leads:
            self._publish(done, inputs)
        ranks.share("published", True)
        return ApplyReport(
            output=staging.final,
            schemes={name: len(layers) for name, layers in job.selection.schemes().items()},
            source_bytes=total,
            output_bytes=sum(shard.nbytes for shard in job.shards),
            reused_bytes=reused,
            dropped_remains=dropped,
            verdicts=job.verdicts,
            notes=(*job.selection.notes, *inputs.notes, *_doubts(found, job)),
        )

    def _machines(self) -> set[str]:
        """The machines that take part, all of which must be about to write the same."""
        own = {"machine": this_machine(), "plan": self.job.plan_identity, "host": platform.node()}
        heads = self.ranks.gather("heads", own)
        other = next((i for i, head in enumerate(heads) if head["plan"] != heads[0]["plan"]), None)
        if other is not None:
            raise ConfigError(
                f"process {other} on {heads[other]['host']} would write something else than "
                f"process 0 on {heads[0]['host']}",
                expected="the same source, factory and version of qrole on every host, and a "
                "factory that answers alike in every process",
                hint="compare `qrole --version`, the factory's file and the source's headers",
            )
        return {head["machine"] for head in heads}

    def _units(
        self, identity: str, inputs: InputRanges, done: Container[str], counter: _Counter
    ) -> dict[str, dict[str, float]]:
        """Does this process's share; returns the amaxes of its layers by unit."""
        job, out = self.job, self.staging.out
        journal = self.staging.journal(identity, self.ranks.rank)
        writer = Writer(job.source, job.shards, job.layout, out, inputs.amaxes, journal)
        amaxes: dict[str, dict[str, float]] = {}

        def do(unit: Unit) -> None:
            amaxes[unit.key] = writer.do(unit)
            counter.add(unit.nbytes)

        try:
            rest = [unit for unit in job.units if unit.key not in done]
            run_units(self.ranks.deal(rest), do, self.workers)
        finally:
            writer.close()
            journal.close()
        return amaxes

    def _publish(self, done: Mapping[str, Mapping[str, float]], inputs: InputRanges) -> None:
        """What stands beside the weights, the check of what is there, the index, and the name."""
        job, staging = self.job, self.staging
        lost = [unit.key for unit in job.units if unit.key not in done]
        assert not lost, f"units that nobody did: {lost[:3]}"
        job.source.check_unchanged()
        if job.source.directory is not None and job.source.config_text is not None:
            copy_other_files(job.source.directory, staging.out)
        for name, text in job.documents.items():
            staging.write_text(name, text)
        amaxes = {module: amax for unit in done.values() for module, amax in unit.items()}
        record = manifest(job, amaxes, inputs.record, _digests(job, staging.out))
        staging.write_text(MANIFEST, json.dumps(record, indent=2, sort_keys=True) + "\n")
        _check_written(job, staging.out)
        index = index_text(job.shards)
        if index is not None:
            staging.write_text("model.safetensors.index.json", index)
        staging.publish(force=self.force, fsync=self.fsync)


def _doubts(found: Record, job: Job) -> Iterator[str]:
    if found.doubted:
        yield (
            f"{len(found.doubted)} of {len(job.units)} pieces of work were done again: the machine "
            "that had done them takes no part in this run, or was restarted, so that what it "
            "wrote may never have come to the disk"
        )


def _digests(job: Job, directory: Path) -> dict[str, str]:
    """SHA-256 of every weight of the layout native, read back from the files."""
    if not job.layout.own_quantizers:
        return {}
    from qrole.checkpoint.native.quantizing import digest
    from qrole.checkpoint.verification.reading import Reader

    found, reader, tensors = {}, Reader(), read_headers(directory)
    for module, layer in job.selection.layers.items():
        parts = [(str(p.content), reader.raw(tensors[p.name])) for p in job.layout.parts(layer)]
        found[module] = digest(parts)
    reader.close()
    return found


def _check_written(job: Job, directory: Path) -> None:
    """Reopens the headers: names, dtypes, shapes and places are those of the plan."""
    found = read_headers(directory)
    planned = {place.tensor.name: place for shard in job.shards for place in shard.places}
    for name, place in planned.items():
        info = found.get(name)
        tensor = place.tensor
        same = info and (info.dtype, info.shape, info.start) == (
            tensor.dtype,
            tensor.shape,
            place.start,
        )
        if not same:
            raise CheckpointError(
                f"{name} was not written as planned to {place.shard}",
                expected=f"{tensor.dtype} {list(tensor.shape)} at byte {place.start}",
                hint="another process has changed the output; run again",
            )
    extra = found.keys() - planned.keys()
    assert not extra, f"unplanned tensors {sorted(extra)[:3]}"


class _Counter:
    """Source bytes done, told to the caller one worker at a time."""

    def __init__(self, done: int, total: int, on_progress: OnProgress | None) -> None:
        self._done, self._total, self._tell = done, total, on_progress
        self._lock = threading.Lock()
        self.add(0)

    def add(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            if self._tell is not None:
                self._tell(self._done, self._total)
