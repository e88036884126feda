"""Doing the work: units encoded or copied to their places, by any number of threads.

The bytes of a unit depend on nothing but the source and the plan, so who does it, and when, does
not matter. A finished unit is journaled.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from qrole.checkpoint.copying import copy_range
from qrole.checkpoint.encode import Workspace, decoded, encode, weight_amax
from qrole.checkpoint.journal import Journal
from qrole.checkpoint.layers import Layer
from qrole.checkpoint.layouts import Content, Layout
from qrole.checkpoint.native.weights import NativeWeight
from qrole.checkpoint.numbers import number
from qrole.checkpoint.shards import Place, Shard
from qrole.checkpoint.source import Source
from qrole.checkpoint.staging import writing
from qrole.checkpoint.units import Unit

if TYPE_CHECKING:
    import torch

__all__ = ["Writer", "run_units"]


class Writer:
    """Writes the units of one process into files that exist.

    Args:
        source: What is read.
        shards: The files.
        layout: How layers are stored.
        directory: Where the files are.
        input_amax: Calibrated amax of the inputs of static layers, by module.
        journal: Where finished units are recorded.
    """

    def __init__(
        self,
        source: Source,
        shards: tuple[Shard, ...],
        layout: Layout,
        directory: Path,
        input_amax: Mapping[str, float],
        journal: Journal,
    ) -> None:
        self.source = source
        self.layout = layout
        self.directory = directory
        self.input_amax = input_amax
        self.journal = journal
        self._places = {p.tensor.name: p for shard in shards for p in shard.places}
        self._files = {s.name: os.open(directory / s.name, os.O_RDWR) for s in shards}
        self._local = threading.local()

    def do(self, unit: Unit) -> dict[str, float]:
        """Writes one unit and records it; returns the amax of each of its layers.

        Raises:
            CheckpointError: The source has changed or holds what is not finite, or the output
                cannot be written.
        """
        work = self._workspace()
        joined = [layer for layer in unit.layers if layer.scheme.stored.shared]
        amaxes = {layer.module: weight_amax(self.source, layer, work) for layer in joined}
        shared = max(amaxes.values(), default=None)
        for layer in unit.layers:
            seen = self._layer(layer, shared, work)
            amaxes.setdefault(layer.module, seen)
        for place in unit.copies:
            self._carry_over(place, work)
        for path in self._read_by(unit):
            self.source.files[path].check()
        with writing(self.directory):
            self.journal.done(unit.key, amaxes)
        return amaxes

    def close(self) -> None:
        """Closes the files."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def _workspace(self) -> Workspace:
        if not hasattr(self._local, "work"):
            self._local.work = Workspace()
        work: Workspace = self._local.work
        return work

    def _layer(self, layer: Layer, amax: float | None, work: Workspace) -> float:
        """Writes a layer; returns the amax that was given, or the one that was found."""
        if layer.native is not None:
            return self._native(layer, layer.native, work)
        places = {p.content: self._places[p.name] for p in self.layout.parts(layer)}
        data, scale = places.pop(Content.DATA), places.pop(Content.SCALE, None)
        done_data = done_scale = 0
        seen = 0.0
        for chunk in encode(self.source, layer, amax, work):
            seen = max(seen, chunk.amax)
            self._write(data, done_data, chunk.data)
            done_data += len(chunk.data)
            if scale is not None:
                self._write(scale, done_scale, chunk.scale)
                done_scale += len(chunk.scale)
        assert done_data == data.tensor.nbytes, "every code was written"
        for content, place in places.items():
            value = number(content, layer.weight, seen, self.input_amax.get(layer.module, 0.0))
            self._write(place, 0, memoryview(struct.pack("<f", value)))
        return seen

    def _native(self, layer: Layer, weight: NativeWeight, work: Workspace) -> float:
        """Writes what a layer's own quantizer makes; returns the weight's amax."""
        from qrole.checkpoint.native.quantizing import (
            quantized,
            raw_bytes,
            tensors_of,
            with_weight,
        )

        places = {p.content: self._places[p.name] for p in self.layout.parts(layer)}

        def write(x_MK: torch.Tensor) -> float:
            for content, value in tensors_of(quantized(weight, x_MK), places).items():
                place = places[content]
                assert tuple(value.shape) == place.tensor.shape, f"{place.tensor.name} as planned"
                raw = raw_bytes(value)
                assert raw.numel() == place.tensor.nbytes, f"{place.tensor.name} as planned"
                self._write(place, 0, raw.numpy().data)
            return float(x_MK.abs().max())

        return with_weight(self.source, layer, work, write)

    def _carry_over(self, place: Place, work: Workspace) -> None:
        tensor = self.source.tensors[place.tensor.source]
        if not tensor.nbytes:
            return
        if tensor.memory is not None:
            held = (ctypes.c_char * tensor.nbytes).from_address(tensor.memory.data_ptr())
            self._write(place, 0, memoryview(held).cast("B"))
        elif tensor.scale is not None:
            done = 0
            for portion in decoded(self.source, tensor, "bf16", work):
                self._write(place, done, portion)
                done += len(portion)
        else:
            assert tensor.stored is not None
            file = self.source.mapped(tensor.stored.file)
            target = self._files[place.shard]
            with writing(self.directory / place.shard):
                copy_range(file.fd, tensor.stored.start, target, place.start, tensor.nbytes)

    def _write(self, place: Place, at: int, content: memoryview) -> None:
        fd, start = self._files[place.shard], place.start + at
        with writing(self.directory / place.shard):
            while content:
                written = os.pwrite(fd, content, start)
                content, start = content[written:], start + written

    def _read_by(self, unit: Unit) -> set[Path]:
        names = [layer.tensor for layer in unit.layers]
        names += [place.tensor.source for place in unit.copies]
        files = (self.source.tensors[name].file for name in names)
        return {file for file in files if file is not None}


def run_units(units: Iterator[Unit], do: Callable[[Unit], object], workers: int) -> None:
    """Lets `workers` threads take units until there are none, or one fails.

    Args:
        units: Taken one at a time; may be shared with other processes.
        do: Does a unit.
        workers: Number of threads.

    Raises:
        BaseException: What the first failing unit raised, or KeyboardInterrupt; each worker has
            finished the unit it was at.
    """
    lock, stop = threading.Lock(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            with lock:
                unit = next(units, None)
            if unit is None:
                return
            try:
                do(unit)
            except BaseException:
                stop.set()
                raise

    with ThreadPoolExecutor(workers, "qrole-apply") as pool:
        futures = [pool.submit(work) for _ in range(workers)]
        try:
            for future in futures:
                future.result()
        except BaseException:
            stop.set()
            raise
