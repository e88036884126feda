"""Input ranges from real batches: the amax that static activation scales are made from.

A model runs in high precision while every covered layer's input is looked at. What is kept of an
input is a histogram over the 15 magnitude bits of bf16, so that ranges of any length merge, and
percentiles and errors can be computed afterwards.
"""

from __future__ import annotations

import fnmatch
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from qrole.errors import ConfigError, NothingMatchedError, UsageError
from qrole.loading import LoadedModel
from qrole.quantizers import IdentityQuantizer
from qrole.quantizers.base import OperandFormat
from qrole.roles import QuantizerRole

if TYPE_CHECKING:
    import torch
    from torch import nn

    from qrole.comparing.data import DataOptions

__all__ = [
    "Calibration",
    "DeadExperts",
    "InputPlace",
    "Method",
    "Range",
    "Rule",
    "calibrate",
    "parse_rule",
]

#: Module, group and copy of the layer whose input is meant.
InputPlace = tuple[str, str, int]
OnProgress = Callable[[int, int], None]

_BINS = 1 << 15
_NVFP4_BLOCK = 16


class Method(StrEnum):
    """How a range becomes an amax: its largest value, a percentile, or the least square error."""

    MAX = "max"
    PERCENTILE = "percentile"
    MSE = "mse"


class DeadExperts(StrEnum):
    """What stands in for the range of an expert that saw no token.

    `sibling`: the largest range of the same projection among the layer's other experts; `weight`:
    the amax of the expert's own weight, as finite as it is arbitrary; `fail`: nothing does.
    """

    SIBLING = "sibling"
    WEIGHT = "weight"
    FAIL = "fail"


@dataclass(frozen=True)
class Rule:
    """The method for the layers that a pattern names.

    Invariant: 0 < percentile <= 100.

    Attributes:
        pattern: Shell pattern of module paths.
        method: The method.
        percentile: Share of the values that must lie below the amax, %.
    """

    pattern: str = "*"
    method: Method = Method.MAX
    percentile: float = 99.99

    def __post_init__(self) -> None:
        if not 0 < self.percentile <= 100:
            raise UsageError(
                f"a percentile of {self.percentile}", expected="0 < p <= 100", hint="such as 99.99"
            )


def parse_rule(text: str) -> Rule:
    """`[PATTERN=]METHOD`, METHOD being `max`, `mse`, `percentile` or `percentile:99.9`.

    Raises:
        UsageError: It is none of these.
    """
    pattern, equals, rest = text.rpartition("=")
    name, colon, number = rest.partition(":")
    try:
        method = Method(name)
        percentile = float(number) if colon else 99.99
    except ValueError as error:
        raise UsageError(
            f"{text!r} is no calibration method",
            expected="max, mse, percentile or percentile:99.9, with PATTERN= before it or not",
            hint="such as '*.down_proj=percentile:99.9'",
        ) from error
    return Rule(pattern if equals else "*", method, percentile)


class Range:
    """What was seen of one input.

    Args:
        block: Largest magnitudes of this many neighbours are counted, instead of all magnitudes:
            what a format with block scales has to represent. 1 counts every element.
    """

    def __init__(self, block: int = 1) -> None:
        self.block = block
        self.amax = 0.0
        self.rows = 0
        self._counts: torch.Tensor | None = None

    def add(self, x_MK: torch.Tensor, *, histogram: bool) -> None:
        """Looks at a batch; NaN is ignored."""
        import torch

        magnitude = x_MK.detach().abs().float().nan_to_num(nan=0.0, posinf=torch.inf)
        self.rows += magnitude.shape[0]
        if not magnitude.numel():
            return
        self.amax = max(self.amax, float(magnitude.max()))
        if not histogram:
            return
        if self.block > 1:
            wide = torch.nn.functional.pad(magnitude, (0, -magnitude.shape[1] % self.block))
            magnitude = wide.reshape(wide.shape[0], -1, self.block).amax(-1)
        bins = magnitude.bfloat16().reshape(-1).view(torch.int16).int()
        found = torch.bincount(bins, minlength=_BINS)
        self._counts = found if self._counts is None else self._counts + found

    def percentile(self, percent: float) -> float:
        """The magnitude that `percent` of the values do not exceed, to the precision of bf16."""
        import torch

        assert self._counts is not None, "counted"
        below = self._counts.cumsum(0)
        wanted = torch.tensor(percent / 100 * float(below[-1])).ceil().to(below.dtype)
        return min(float(_values()[int(torch.searchsorted(below, wanted))]), self.amax)

    def least_error(self) -> float:
        """The amax whose scale gives the least square error of what is counted, in E4M3.

        Elements are cast with the scale 448/amax; block maxima have their scales cast, which is
        all that NVFP4's global scale bears on.
        """
        import torch

        assert self._counts is not None, "counted"
        seen = self._counts.nonzero().reshape(-1)
        values, counts = _values()[seen].double(), self._counts[seen].double()
        best, best_error = self.amax, float("inf")
        for step in range(_MSE_STEPS):
            amax = self.amax * 2.0 ** (-step / 8)
            scaled = (values * (448.0 / amax)).clamp(max=448.0).float()
            back = scaled.to(torch.float8_e4m3fn).double() * (amax / 448.0)
            error = float((counts * (back - values).square()).sum())
            if error < best_error:
                best, best_error = amax, error
        return best


_MSE_STEPS = 64


def _values() -> torch.Tensor:
    """The magnitude that each bin stands for."""
    import torch

    return torch.arange(_BINS, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()


@dataclass(frozen=True)
class Calibration:
    """The amax of every input that was asked for.

    Attributes:
        amaxes: By place.
        dead: Places of experts that saw no token, and what stands in.
        source: Where the data came from.
        sha256: Hash of the data.
        samples: Samples.
        tokens: Tokens; 0 where the inputs are none.
        rules: The methods.
    """

    amaxes: dict[InputPlace, float]
    dead: dict[InputPlace, str]
    source: str
    sha256: str
    samples: int
    tokens: int
    rules: tuple[Rule, ...] = field(default=())


def calibrate(
    model: LoadedModel,
    wanted: Mapping[InputPlace, int],
    data: DataOptions,
    *,
    rules: Iterable[Rule] = (),
    dead_experts: DeadExperts = DeadExperts.SIBLING,
    weight_amax: Callable[[InputPlace], float] | None = None,
    on_progress: OnProgress | None = None,
) -> Calibration:
    """Runs a model over its data and takes the amax of layer inputs.

    Args:
        model: With weights.
        wanted: Inputs to look at, with the block of their format (16 for NVFP4, else 1).
        data: What to run it on.
        rules: Methods by module; later ones win; `max` where none fits.
        dead_experts: What stands in for experts that saw no token.
        weight_amax: The amax of an expert's weight, for `DeadExperts.WEIGHT`.
        on_progress: Called with batches done and in total.

    Raises:
        UsageError: There is no data to be had; or an expert saw no token and nothing may stand in.
        ConfigError: A layer that is no expert was not reached.
    """
    from qrole.comparing.data import load_data

    batches = load_data(model, data)
    rules = tuple(rules)
    chosen = {place: _rule(place, rules) for place in wanted}
    ranges = {place: Range(block) for place, block in wanted.items()}
    _run(model, batches.batches, ranges, chosen, on_progress)
    amaxes = {p: _amax(r, chosen[p]) for p, r in ranges.items() if r.rows and r.amax > 0}
    dead = _dead(wanted, amaxes, ranges, dead_experts)
    for place in dead:
        amaxes[place] = _stand_in(place, amaxes, ranges, dead_experts, weight_amax)
    names = dict.fromkeys(dead, dead_experts.value)
    facts = (batches.source, batches.sha256, batches.samples, batches.tokens)
    return Calibration(amaxes, names, *facts, rules)


def _rule(place: InputPlace, rules: tuple[Rule, ...]) -> Rule:
    name = ".".join(part for part in place[:2] if part)
    fitting = [rule for rule in rules if fnmatch.fnmatchcase(name, rule.pattern)]
    return fitting[-1] if fitting else Rule()


def _amax(seen: Range, rule: Rule) -> float:
    if rule.method is Method.MAX:
        return seen.amax
    if rule.method is Method.PERCENTILE:
        return seen.percentile(rule.percentile) or seen.amax
    return seen.least_error()


class _Recorder(IdentityQuantizer):
    """Keeps a tensor as it is, and says that it does not, so that the run tells of it."""

    @property
    def rowwise_format(self) -> OperandFormat:
        return OperandFormat("observed")

    @property
    def columnwise_format(self) -> OperandFormat:
        return OperandFormat("observed")


def _recording(role: QuantizerRole | None) -> IdentityQuantizer:
    if role is not None and role.tensor_type == "input":
        return _Recorder()
    return IdentityQuantizer()


def _run(
    model: LoadedModel,
    batches: tuple[Any, ...],
    ranges: Mapping[InputPlace, Range],
    rules: Mapping[InputPlace, Rule],
    on_progress: OnProgress | None,
) -> None:
    import torch

    from qrole.comparing.outputs import call_model, running_forward
    from qrole.emitters import walk
    from qrole.execute import Observer, executing
    from qrole.plans import build_plan
    from qrole.plugins import Factory

    class Watch(Observer):
        def operand(self, slot: Any, copy: int, tensor: torch.Tensor, quantized: Any) -> None:
            place = places.get((slot.module, slot.group, copy))
            if slot.operand == "input" and place is not None:
                rows = tensor.reshape(-1, tensor.shape[-1])
                ranges[place].add(rows, histogram=rules[place].method is not Method.MAX)

    assert model.module is not None, "a model with weights"
    plan = build_plan(walk(model), Factory.of(_recording))
    places = _places_in_model(ranges, plan.inventory.slots, model.module)
    with torch.no_grad(), executing(model.module, plan, observer=Watch()):
        for done, batch in enumerate(batches):
            if on_progress is not None:
                on_progress(done, len(batches))
            with running_forward(model.module):
                call_model(model.module, batch)


def _places_in_model(
    wanted: Iterable[InputPlace], slots: Iterable[Any], module: nn.Module
) -> dict[InputPlace, InputPlace]:
    """The places by where they are in the model that runs, which may have renamed its modules."""
    inputs = (slot for slot in slots if slot.operand == "input")
    copies: dict[tuple[str, str], int] = {(s.module, s.group): s.copies for s in inputs}

    def is_in_model(place: InputPlace) -> bool:
        return place[2] < copies.get(place[:2], 0)

    found = {place: place for place in wanted}
    if not all(map(is_in_model, found)):
        found = _renamed(found, module)
    lost = [stored for place, stored in found.items() if not is_in_model(place)]
    if lost:
        names = sorted({".".join(part for part in place[:2] if part) for place in lost})
        raise ConfigError(
            f"{len(names)} layers of the checkpoint are none of the loaded model: "
            + ", ".join(names[:6]),
            expected="tensor names that are the model's module names, or that transformers renames",
            hint="pass --weight-only, or give these roles a format with dynamic scales",
        )
    return found


def _renamed(places: Iterable[InputPlace], module: nn.Module) -> dict[InputPlace, InputPlace]:
    """Places of a checkpoint by the names that transformers gives its modules."""
    if importlib.util.find_spec("transformers") is None:
        return {place: place for place in places}
    from qrole.emitters.huggingface import loaded_names

    loaded_name = loaded_names(module)
    return {
        (loaded_name(f"{path}.weight").removesuffix(".weight"), group, copy): (path, group, copy)
        for path, group, copy in places
    }


def _dead(
    wanted: Mapping[InputPlace, int],
    amaxes: Mapping[InputPlace, float],
    ranges: Mapping[InputPlace, Range],
    policy: DeadExperts,
) -> list[InputPlace]:
    """Places without a usable range: experts only, or else the data does not fit the model."""
    dead = [place for place in wanted if place not in amaxes]
    layers: dict[tuple[str, str], int] = {}
    for place in wanted:
        layers[place[:2]] = layers.get(place[:2], 0) + 1
    alone = [p for p in dead if layers[p[:2]] == 1]
    if alone:
        states = "saw only zeros" if any(ranges[p].rows for p in alone) else "were not reached"
        raise NothingMatchedError(
            f"{len(alone)} layers {states} while calibrating: "
            + ", ".join(p[0] for p in alone[:6]),
            expected="data that reaches every layer with a static scale",
            hint="give other data with --data, or pass --weight-only",
        )
    if dead and policy is DeadExperts.FAIL:
        raise UsageError(
            f"{len(dead)} experts saw no token: "
            + ", ".join(f"{p[0]} expert {p[2]}" for p in dead[:6]),
            expected="tokens for every expert",
            hint="give more data, or let something stand in with --dead-experts sibling",
        )
    return dead


def _stand_in(
    place: InputPlace,
    amaxes: Mapping[InputPlace, float],
    ranges: Mapping[InputPlace, Range],
    policy: DeadExperts,
    weight_amax: Callable[[InputPlace], float] | None,
) -> float:
    if policy is DeadExperts.WEIGHT and weight_amax is not None:
        return weight_amax(place) or 1.0
    alive = [a for p, a in amaxes.items() if p[:2] == place[:2] and ranges[p].rows]
    if not alive:
        raise NothingMatchedError(
            f"no expert of {place[0]} saw a token",
            expected="data that reaches every layer",
            hint="give more data with --data, or pass --dead-experts weight",
        )
    return max(alive)
