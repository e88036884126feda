"""A job: everything that is known before the first byte is written."""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qrole._version import __version__
from qrole.checkpoint.config_text import with_key
from qrole.checkpoint.constraints import OnShape, SelectOptions
from qrole.checkpoint.engines import (
    BF16_ONLY,
    Verdict,
    check_engines,
    model_dtype,
    verdicts,
)
from qrole.checkpoint.fused import DEFAULT_FUSIONS, Fusion
from qrole.checkpoint.layers import Selection
from qrole.checkpoint.layouts import LAYOUTS, Layout
from qrole.checkpoint.schemes import Activations, Fp8Mode
from qrole.checkpoint.selection import select
from qrole.checkpoint.shards import Shard, plan_shards
from qrole.checkpoint.source import Source, open_source
from qrole.checkpoint.units import Unit, plan_units
from qrole.emitters.tensors import walk_tensors
from qrole.errors import ConfigError, UnknownNameError, UsageError
from qrole.loading import LoadedModel, load_model
from qrole.plans import Inventory, Plan, build_plan
from qrole.plugins import Factory, load_factory

__all__ = ["ApplyOptions", "Job", "prepare", "uncollected"]


@dataclass(frozen=True)
class ApplyOptions:
    """What `apply` is asked for.

    Attributes:
        layout: Key in `LAYOUTS`.
        fp8: How FP8 per-tensor scaling is stored.
        weight_only: Leave activations in high precision; needs no calibration.
        on_shape: What to do about shapes that a format cannot take.
        quantize_head: Quantize the output head as the plan says.
        fusions: Layers that engines join, by last name component.
        engines: Engines that must load the result.
        dtype: What the written config names as the model's dtype: `bfloat16`, `float16`,
            `float32`; `""` leaves it as it is. Readers cast what they load to it.
    """

    layout: str = "compressed-tensors"
    fp8: Fp8Mode = Fp8Mode.STATIC
    weight_only: bool = False
    on_shape: OnShape = OnShape.FAIL
    quantize_head: bool = False
    fusions: tuple[Fusion, ...] = DEFAULT_FUSIONS
    engines: tuple[str, ...] = ()
    dtype: str = ""

    def for_bytes(self) -> dict[str, Any]:
        """The options that the output's bytes depend on, as JSON values."""
        named = {k: v for k, v in asdict(self).items() if k not in ("fusions", "engines")}
        return {**named, "fusions": [list(f.names) for f in self.fusions]}


@dataclass(frozen=True)
class Job:
    """A plan, and the output it becomes.

    Attributes:
        source: What is read.
        plan: Who answered what.
        selection: What is quantized.
        layout: How it is stored.
        options: What was asked for.
        verdicts: What each engine makes of the result.
        loaded: The model, where one with weights is in memory.
    """

    source: Source
    plan: Plan
    selection: Selection
    layout: Layout
    options: ApplyOptions
    verdicts: tuple[Verdict, ...]
    loaded: LoadedModel | None = None

    @functools.cached_property
    def shards(self) -> tuple[Shard, ...]:
        """The output's files."""
        return plan_shards(self.source, self.selection, self.layout)

    @functools.cached_property
    def units(self) -> tuple[Unit, ...]:
        """The work, largest first."""
        return tuple(plan_units(self.source, self.selection, self.shards))

    @functools.cached_property
    def documents(self) -> dict[str, str]:
        """Texts beside the weights, by file name.

        Raises:
            ConfigError: The layout cannot tell these layers from those that stay.
        """
        documents = self.layout.documents(self.selection, self.source)
        if self.options.dtype:
            key = "torch_dtype" if "torch_dtype" in self.source.config else "dtype"
            text = documents["config.json"]
            documents["config.json"] = with_key(text, key, self.options.dtype)
        return documents

    @property
    def static_layers(self) -> tuple[str, ...]:
        """Modules whose input needs a calibrated scale."""
        schemes = self.selection.schemes().values()
        if not any(layers[0].scheme.activations is Activations.STATIC for layers in schemes):
            return ()
        return tuple(
            module
            for module, layer in self.selection.layers.items()
            if layer.scheme.activations is Activations.STATIC
        )

    @functools.cached_property
    def plan_identity(self) -> str:
        """Hash of what is to be written where, which every process of a job agrees on."""
        layers = {m: [repr(la)] for m, la in self.selection.layers.items()}
        headers = [hashlib.sha256(shard.header).hexdigest() for shard in self.shards]
        content = [__version__, self.layout.name, layers, headers, self.options.for_bytes()]
        return _hash([*content, self.plan.factory.sha256])

    def identity(self, input_amax: Mapping[str, float]) -> str:
        """Hash of everything that the output's bytes depend on."""
        return _hash([self.plan_identity, self.source.identity, dict(input_amax)])


def _hash(content: list[Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def prepare(
    model: str | LoadedModel,
    factory: str | Factory | Callable[..., Any],
    options: ApplyOptions,
) -> Job:
    """Opens the model, asks the factory, and lays the output out.

    Headers are read, weights are not; torch is not imported for checkpoints on disk.

    Args:
        model: A checkpoint on disk, Python that builds a model, or a loaded model.
        factory: Its name, or the function.
        options: What is asked for.

    Raises:
        CheckpointError: The source is missing, truncated or malformed.
        UsageError: A wanted engine does not load the result, or there is no such layout.
        ConfigError: The plan cannot be stored; the message names the slots.
    """
    if options.layout not in LAYOUTS:
        raise UnknownNameError("layout", options.layout, LAYOUTS)
    layout = LAYOUTS[options.layout]
    _check_options(options, layout)
    with uncollected():
        source, inventory, loaded = _open(model)
        plan = build_plan(inventory, _factory(factory))
        selection = select(plan, source, _select_options(options, layout))
    _check_layout(selection, layout)
    _check_dtype(selection, source, options)
    found = verdicts(layout.name, selection, options.dtype or model_dtype(source.config))
    check_engines(options.engines, found)
    return Job(source, plan, selection, layout, options, found, loaded)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keeps the garbage collector from looking over and over at objects that all stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _open(model: str | LoadedModel) -> tuple[Source, Inventory, LoadedModel | None]:
    if isinstance(model, str) and _is_stored(model):
        source = open_source(Path(model), model)
        return source, _stored_inventory(source), None
    from qrole.checkpoint.model_source import source_of_loaded
    from qrole.emitters import walk

    loaded = load_model(model, weights=True) if isinstance(model, str) else model
    source = source_of_loaded(loaded)
    inventory = walk(loaded) if loaded.tensors is None else _stored_inventory(source)
    return source, inventory, loaded if _has_values(loaded) else None


def _is_stored(model: str) -> bool:
    path = Path(model)
    return path.is_dir() or path.suffix == ".safetensors"


def _stored_inventory(source: Source) -> Inventory:
    stored = {n: t.stored for n, t in source.tensors.items() if t.stored is not None}
    return walk_tensors(stored, source.name)


def _has_values(loaded: LoadedModel) -> bool:
    """Whether the model can be run, to calibrate on it."""
    module = loaded.module
    return module is not None and not any(p.is_meta for p in module.parameters())


def _factory(factory: str | Factory | Callable[..., Any]) -> Factory:
    if isinstance(factory, Factory):
        return factory
    return load_factory(factory) if isinstance(factory, str) else Factory.of(factory)


def _select_options(options: ApplyOptions, layout: Layout) -> SelectOptions:
    return SelectOptions(
        fp8=options.fp8,
        weight_only=options.weight_only,
        on_shape=options.on_shape,
        quantize_head=options.quantize_head,
        fusions=options.fusions,
        block_rows=layout.block_rows,
        own_quantizers=layout.own_quantizers,
    )


def _check_options(options: ApplyOptions, layout: Layout) -> None:
    """Refuses what has no meaning where the plan's own quantizers are used as they are."""
    if not layout.own_quantizers:
        return
    default = ApplyOptions()
    given = {
        "--engine": bool(options.engines),
        "--fp8": options.fp8 is not default.fp8,
        "--weight-only": options.weight_only,
        "--on-shape": options.on_shape is not default.on_shape,
        "--dtype": bool(options.dtype),
    }
    clash = [name for name, on in given.items() if on]
    if clash:
        raise UsageError(
            f"{' and '.join(clash)} with the layout {layout.name}",
            expected="no option that is about engines: none loads this layout, which stores what "
            "the plan's quantizers make and leaves config.json as it is",
            hint="leave it out, or choose a layout that engines load",
        )


def _check_layout(selection: Selection, layout: Layout) -> None:
    """Refuses schemes that the layout cannot hold, naming the slots."""
    schemes = {} if layout.own_quantizers else selection.schemes()
    for name, layers in schemes.items():
        if name not in layout.schemes:
            raise ConfigError(
                f"the layout {layout.name} has no {name}: slots "
                + ", ".join(layer.slot for layer in layers[:6]),
                expected=f"schemes among {', '.join(sorted(layout.schemes))}",
                hint="choose another --layout, or give these slots another format",
            )
    if layout.single_scheme and len(schemes) > 1:
        raise UsageError(
            f"the plan mixes {', '.join(schemes)}, and {layout.name} holds one scheme",
            expected="one format for all quantized weights",
            hint="choose the layout compressed-tensors, which holds mixes",
        )


def _check_dtype(selection: Selection, source: Source, options: ApplyOptions) -> None:
    """Refuses fp16 models in formats that compressed-tensors decodes to bf16."""
    if options.dtype not in ("", "bfloat16", "float16", "float32"):
        raise UsageError(
            f"the dtype {options.dtype!r}",
            expected="bfloat16, float16 or float32",
            hint="leave it out to keep the source's",
        )
    dtype = options.dtype or model_dtype(source.config)
    layers = [la for la in selection.layers.values() if la.scheme.encoding.startswith(BF16_ONLY)]
    if options.layout == "compressed-tensors" and dtype == "float16" and layers:
        raise ConfigError(
            f"the config names float16, and {layers[0].scheme.name} weights are decoded to bf16: "
            f"slots {', '.join(layer.slot for layer in layers[:6])}",
            expected="a model in bf16, or FP8 weights",
            hint="pass --dtype bfloat16: readers then load the rest of the model in bf16 too",
        )
